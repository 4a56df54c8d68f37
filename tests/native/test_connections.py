"""One connection: greeting, frames in pieces, and what is no broker at all."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.messages import encode_unsupported_api_versions
from appliance_client.connection import Connection
from appliance_client.errors import TransportError, UnsupportedVersionError
from appliance_client.options import ProducerOptions, options_of
from tests.native.scripted import ScriptedCluster


def made(**options: Any) -> ScriptedCluster:
    return ScriptedCluster(options_of(ProducerOptions, None, options))


def metadata(cluster: ScriptedCluster) -> Any:
    return cluster.run(cluster.core.network.call(-1, ApiKey.METADATA, MetadataRequest(())))


def test_a_broker_of_older_versions_is_greeted_again_in_one_that_it_speaks() -> None:
    """Apache Kafka answers an unknown version of ApiVersions with error 35 in the body of version 0 (KIP-511)."""
    cluster = made()
    cluster.scripts[ApiKey.API_VERSIONS] = deque([encode_unsupported_api_versions(1)])
    assert metadata(cluster).brokers
    greetings = [version for api, version, _ in cluster.asked if api is ApiKey.API_VERSIONS]
    assert greetings[:2] == [4, 3]


def test_a_request_that_the_broker_does_not_speak_is_refused_here() -> None:
    cluster = made()
    cluster.core.network.connection(-1).open()
    cluster.pass_s(0.1)
    cluster.core.network.connection(-1).versions[int(ApiKey.METADATA)] = (90, 99)
    with pytest.raises(UnsupportedVersionError, match="speaks versions 90 to 99"):
        metadata(cluster)


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\xff\xff\xff\xff" + bytes(20),
        b"\x00\x00\x00\x00" + bytes(20),
        b"\x00\x00\x00\x08" + b"\x00\x00\x00\x63" + bytes(4),
    ],
    ids=["http", "negative length", "no length", "answer to nothing"],
)
def test_what_is_no_kafka_broker_ends_the_connection_and_every_caller_is_told(wire: bytes) -> None:
    cluster = made()
    cluster.scripts[ApiKey.METADATA] = deque([wire] * 3)
    with pytest.raises(TransportError):
        metadata(cluster)
    assert all(
        each.in_flight == 0 for each in cluster.core.network.connections() if each.state == Connection.IDLE
    )


def test_frames_are_read_whatever_the_pieces_they_come_in() -> None:
    cluster = made()
    connection = cluster.core.network.connection(-1)
    connection.open()
    cluster.pass_s(0.1)
    room = Connection.room

    def one_byte(self: Connection) -> memoryview:
        return room(self)[:1]

    connection.room = one_byte.__get__(connection)  # type: ignore[method-assign]
    assert metadata(cluster).brokers
