"""Answers that are large beside records: what was asked on the same connection after them is answered too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import ask

TOPICS = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("large") / "data")
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


@pytest.mark.parametrize("validate_only", [True, False])
def test_connection_goes_on_after_a_large_answer_that_came_later(
    broker: Appliance, validate_only: bool
) -> None:
    """The controller answers with every setting of every topic, long after the socket was read."""
    topics = tuple(CreatableTopic(f"wide-{number}", 1, -1) for number in range(TOPICS))
    with WireSocket(broker.port, timeout_s=120) as connection:
        request = CreateTopicsRequest(topics, 100_000, validate_only)
        response = ask(connection, ApiKey.CREATE_TOPICS, request)
        assert [topic.error_code for topic in response.topics] == [0] * TOPICS
        assert len(ask(connection, ApiKey.CREATE_TOPICS, request).topics) == TOPICS
