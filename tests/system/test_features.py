"""Features in ApiVersions (KIP-584): what clients of Kafka conclude from them must be served here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("features") / "data")
    started.start()
    try:
        yield started
    finally:
        started.stop()


def versions(broker: Appliance, version: int) -> ApiVersionsResponse:
    answer: ApiVersionsResponse = request(
        broker.address, ApiKey.API_VERSIONS, version, ApiVersionsRequest("test", "1")
    )
    return answer


def test_groups_of_kip_848_and_transactions_of_kip_890_are_finalized(broker: Appliance) -> None:
    told = versions(broker, 4)
    assert {each.name: each.max_version_level for each in told.finalized_features} == {
        "group.version": 1,
        "metadata.version": 30,
        "transaction.version": 2,
    }
    assert {each.name: (each.min_version, each.max_version) for each in told.supported_features} == {
        "group.version": (0, 1),
        "metadata.version": (7, 30),
        "transaction.version": (0, 2),
    }
    assert told.finalized_features_epoch == 1


def test_versions_before_4_hear_of_no_feature_whose_lowest_level_is_0(broker: Appliance) -> None:
    assert [each.name for each in versions(broker, 3).supported_features] == ["metadata.version"]
    assert versions(broker, 0).supported_features == ()


@pytest.mark.slow
def test_kafkas_own_tool_prints_them(broker: Appliance) -> None:
    told = tool("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", broker.address, "describe")
    levels = {
        line.split()[1]: line.split("FinalizedVersionLevel:")[1].split()[0]
        for line in told.splitlines()
        if line.startswith("Feature:")
    }
    assert levels == {"group.version": "1", "metadata.version": "4.3-IV0", "transaction.version": "2"}
