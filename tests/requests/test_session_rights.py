"""What is remembered for one session is not used for another of other rights, nor after its own have changed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.metadata import MetadataRequest, MetadataResponse, MetadataTopic
from appliance.protocol.messages import decode_response, encode_request
from appliance.protocol.records.record import Record, encode_batch
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.session import ANONYMOUS, SOFTWARE_CHARACTERS_MAX, Request, Session
from tests.requests.serving import TOPIC, Serving, serving

METADATA_VERSION = 12
ALL_TOPICS = MetadataRequest(None, False)
ALICE, BOB = "User:alice", "User:bob"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as made:
        yield made


class OwnTopics:
    """Metadata as an authorizer would have it: everybody sees one topic, named like the principal."""

    def __init__(self, house: Serving) -> None:
        self.house = house
        self.made = 0
        self.requests = house.local_requests({int(ApiKey.METADATA): self._metadata})

    def _metadata(self, _request: MetadataRequest, view: LocalView) -> MetadataResponse:
        self.made += 1
        name = f"{view.session.principal} {view.session.rights_version}"
        return MetadataResponse((), (MetadataTopic(0, name),), cluster_id="c", controller_id=0)

    def ask(self, session: Session) -> str:
        """Return the one topic that the session is told of."""
        frame = encode_request(ApiKey.METADATA, METADATA_VERSION, ALL_TOPICS, 1)
        block = self.house.pool.take(len(frame))
        assert block is not None
        block.view[: len(frame)] = frame
        request = Request(session, block, int(ApiKey.METADATA), METADATA_VERSION, 1)
        # Size prefix, header without a client id, no tagged fields.
        self.requests.begin(request, block.view, 4 + 10 + 1, len(frame))
        while not self.house.long.is_empty():
            self.house.long.run()
        answer = memoryview(self.house.answers[request])
        response: MetadataResponse = decode_response(ApiKey.METADATA, METADATA_VERSION, answer)[1]
        (topic,) = response.topics
        assert topic.name is not None
        return topic.name


def test_a_kept_metadata_answer_is_not_sent_to_another_principal(house: Serving) -> None:
    topics = OwnTopics(house)
    alice, bob = house.session(1, principal=ALICE), house.session(2, principal=BOB)
    for _ in range(3):
        assert topics.ask(alice) == f"{ALICE} 0"
        assert topics.ask(bob) == f"{BOB} 0"
    assert topics.ask(house.session(3, principal=ALICE)) == f"{ALICE} 0"
    assert topics.made == 2


def test_a_kept_metadata_answer_is_not_sent_after_the_rights_of_its_session_changed(house: Serving) -> None:
    topics = OwnTopics(house)
    session = house.session(1, principal=ALICE)
    for _ in range(3):
        assert topics.ask(session) == f"{ALICE} 0"
    session.rights_version = 1
    assert topics.ask(session) == f"{ALICE} 1"


def test_sessions_of_the_same_rights_share_a_kept_metadata_answer(house: Serving) -> None:
    topics = OwnTopics(house)
    for number in range(10):
        assert topics.ask(house.session(number)) == f"{ANONYMOUS} 0"
    assert topics.made == 1


def produce_frame(client_id: str) -> bytes:
    """Produce v9 of one batch; only the correlation id differs between two of one client."""
    records = bytes(encode_batch([Record(bytes(100), timestamp_ms=0)]))
    name = TOPIC.encode()
    body = struct.pack(">bhib", 0, 1, 30_000, 2) + bytes([len(name) + 1]) + name
    length = len(records) + 1
    body += b"\x02" + struct.pack(">i", 0) + bytes([length & 0x7F | 0x80, length >> 7]) + records + b"\0\0\0"
    raw = client_id.encode()
    header = struct.pack(">hhih", 0, 9, 7, len(raw)) + raw + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def is_read_whole(house: Serving, session: Session) -> bool:
    """Whether a session's Produce request was parsed, and not recognised by its bytes. It is placed in any case.

    Only the long way reads the client id out of the header.
    """
    session.client_id = None
    house.serve(session, produce_frame("c"))
    assert house.placed() == 1
    return session.client_id == "c"


def test_a_repeated_produce_request_is_recognised_by_its_bytes(house: Serving) -> None:
    session = house.session()
    assert is_read_whole(house, session)
    assert not is_read_whole(house, session)
    assert not is_read_whole(house, session)


def test_a_produce_request_is_read_whole_again_after_the_rights_of_its_session_changed(
    house: Serving,
) -> None:
    """Else a producer whose right to write was revoked would go on writing."""
    session = house.session()
    is_read_whole(house, session)
    assert not is_read_whole(house, session)
    session.rights_version = 1
    assert is_read_whole(house, session)
    assert not is_read_whole(house, session)
    session.rights_version = 0
    assert is_read_whole(house, session)


def test_a_produce_request_is_not_recognised_by_what_another_session_was_allowed(house: Serving) -> None:
    alice, bob = house.session(1, principal=ALICE), house.session(2, principal=BOB)
    is_read_whole(house, alice)
    assert not is_read_whole(house, alice)
    assert is_read_whole(house, bob)


def test_a_session_knows_its_clients_software_and_keeps_a_bounded_part_of_it(house: Serving) -> None:
    session = house.session()
    assert (
        house.ask(session, ApiKey.API_VERSIONS, 4, ApiVersionsRequest("librdkafka", "2.11.0")).error_code == 0
    )
    assert (session.software_name, session.software_version) == ("librdkafka", "2.11.0")
    long = "a" * 10_000
    assert house.ask(session, ApiKey.API_VERSIONS, 4, ApiVersionsRequest(long, long)).error_code == 0
    assert len(session.software_name) == len(session.software_version) == SOFTWARE_CHARACTERS_MAX
