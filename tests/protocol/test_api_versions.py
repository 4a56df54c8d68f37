from __future__ import annotations

from pathlib import Path

import kio.schema.index as kio_index
import pytest
from kafka.protocol.broker_version_data import BrokerVersionData

from appliance.protocol.api_table import api_page
from appliance.protocol.api_versions import ADVERTISED, NEVER, ApiKey, api_name, is_served
from tests.protocol import judges

PAGE = Path(__file__).parents[2] / "docs" / "apis.md"


def test_page_of_apis_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == api_page(), (
        "run: python -m appliance.protocol.api_table docs/apis.md"
    )


def test_advertised_keys_ascend_and_hold_only_what_is_served() -> None:
    keys = [row.api_key for row in ADVERTISED]
    assert keys == sorted(keys)
    assert keys == [int(api) for api in ApiKey if api.served]


def test_produce_is_advertised_from_zero_and_served_from_three() -> None:
    assert ADVERTISED[0] == (0, 0, 13)
    assert not is_served(0, 2)
    assert is_served(0, 3)


def test_versions_outside_a_range_are_not_served() -> None:
    for api in ApiKey:
        assert not is_served(api, api.min_version - 1)
        assert not is_served(api, api.max_version + 1)
        assert is_served(api, api.max_version) is api.served
    assert not is_served(-1, 0)
    assert not is_served(4, 0)


@pytest.mark.parametrize("api", list(ApiKey), ids=lambda api: api.title)
def test_table_agrees_with_kafka_s_own_definitions(api: ApiKey) -> None:
    package = kio_index.api_key_map[int(api)]
    assert package == api.name.lower()
    versions = sorted(kio_index.schema_name_map[package])
    assert versions[0] == api.min_version
    assert versions[-1] >= api.max_version
    for version in range(api.min_version, api.max_version + 1):
        flexible = judges.kio_class(api, version, "Request").__flexible__
        assert flexible is (version >= api.first_flexible)


def test_kafka_python_takes_us_for_a_recent_kafka() -> None:
    versions = {row.api_key: (row.min_version, row.max_version) for row in ADVERTISED}
    assert BrokerVersionData(api_versions=versions).broker_version >= (4, 2)


def test_names_are_kafka_s() -> None:
    assert ApiKey.ADD_PARTITIONS_TO_TXN.title == "AddPartitionsToTxn"
    assert api_name(2) == "ListOffsets"
    assert api_name(-7) == "API -7"


def test_header_versions_follow_flexibility_but_for_api_versions() -> None:
    assert (ApiKey.METADATA.request_header_version(8), ApiKey.METADATA.request_header_version(9)) == (1, 2)
    assert (ApiKey.METADATA.response_header_version(8), ApiKey.METADATA.response_header_version(9)) == (0, 1)
    assert ApiKey.API_VERSIONS.request_header_version(3) == 2
    assert ApiKey.API_VERSIONS.response_header_version(4) == 0
    assert ApiKey.SASL_HANDSHAKE.first_flexible == NEVER
