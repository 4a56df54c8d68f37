"""Malformed frames over a live connection: an error code, or the connection closed with one line; no one else minds."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.protocol.api_versions import SERVED_VERSIONS, ApiKey
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import decode_response
from tests.protocol.reading import FRAME_BYTES_MAX, from_hex, parsed
from tests.support.broker import Appliance
from tests.support.wire import ConnectionEnded, WireSocket, answers_api_versions, nullable_string
from tests.system.raw import (
    MIB,
    Lines,
    family_pss_bytes,
    produce_frame,
    wait_until,
)
from tests.system.steady import undisturbed

CORPUS = Path(__file__).parent.parent / "protocol" / "corpus"
INVALID = sorted((CORPUS / "invalid").glob("*.hex"))
VALID = sorted((CORPUS / "valid").glob("*.hex"))

# What a whole file of bad frames may leave behind in all processes together: codecs compiled on first use and the
# touched pages of pools and logs, nothing that grows with the number of frames.
LASTING_GROWTH_BYTES = 48 * MIB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """For the tests that look for no line."""
    yield from running(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """For the tests that look for a line. A process leaves out what comes after 100 lines of a kind in 10 s."""
    yield from running(tmp_path_factory.mktemp("watched"))


def running(home: Path) -> Iterator[Appliance]:
    """An appliance for the file; at its end no process was restarted, and none wrote a traceback."""
    appliance = Appliance(
        home / "data",
        settings={"socket.request.max.bytes": FRAME_BYTES_MAX, "network.closed.lines.per.minute": 1_000_000},
    )
    appliance.start()
    try:
        with undisturbed(appliance):
            yield appliance
    finally:
        appliance.stop()


def outcome(broker: Appliance, frame: bytes) -> tuple[str, bytes]:
    """Sends `frame` and no more; ("closed", what came before) or ("answered", the first answer)."""
    with WireSocket(broker.port) as connection:
        connection.send(frame)
        connection.shutdown_writing()
        try:
            return "answered", connection.read_frame()
        except ConnectionEnded as ended:
            return "closed", ended.bytes_before


@pytest.mark.parametrize("file", INVALID, ids=lambda file: file.stem)
def test_invalid_frame_of_the_corpus_ends_as_written_beside_it(watched: Appliance, file: Path) -> None:
    verdict, why = file.with_suffix(".txt").read_text().strip().split(": ", 1)
    lines = Lines(watched)
    how, answer = outcome(watched, from_hex(file.read_text()))
    if verdict == "refused":
        name = why.split(":", 1)[0]
        assert how == "answered"
        assert struct.pack(">h", ErrorCode[name]) in answer
    else:
        assert (how, answer) == ("closed", b"")
        wait_until(lambda: bool(lines.containing(" closed: ")), f"a line that says why ({why})")
        (line,) = lines.containing(" closed: ")
        assert "are still to come" in why or why in line
    assert answers_api_versions(watched.port, 30)


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_valid_frame_of_the_corpus_is_answered(watched: Appliance, file: Path) -> None:
    frame = from_hex(file.read_text())
    header, request = parsed(frame)
    lines = Lines(watched)
    with WireSocket(watched.port) as connection:
        connection.send(frame)
        if not (header.api_key == ApiKey.PRODUCE and request.acks == 0):
            assert struct.unpack_from(">i", connection.read_frame()) == (header.correlation_id,)
        marker = connection.send_request(ApiKey.API_VERSIONS, 0, b"", flexible=False)
        assert struct.unpack_from(">i", connection.read_frame()) == (marker,)
    assert not lines.containing(" closed: ")


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_frame_cut_short_and_closed_disturbs_nobody(broker: Appliance, file: Path) -> None:
    frame = from_hex(file.read_text())
    for length in {1, 3, 4, 7, 9, len(frame) // 2, len(frame) - 1}:
        how, answer = outcome(broker, frame[:length])
        assert (how, answer) == ("closed", b"")
        with WireSocket(broker.port) as connection:
            connection.send(frame[:length])
            connection.reset()
    assert answers_api_versions(broker.port, 30)


@pytest.mark.parametrize("version", [-1, -(1 << 15), 5, 99, (1 << 15) - 1])
def test_unknown_version_of_api_versions_is_answered_in_v0(broker: Appliance, version: int) -> None:
    with WireSocket(broker.port) as connection:
        correlation_id = connection.send_request(ApiKey.API_VERSIONS, version, b"\xff\xff", flexible=False)
        answer = connection.read_frame()
        assert struct.unpack_from(">ihi", answer) == (correlation_id, ErrorCode.UNSUPPORTED_VERSION, 1)
        assert struct.unpack_from(">hhh", answer, 10) == (ApiKey.API_VERSIONS, 0, 4)
        # The client asks again on the same connection, as it must be able to.
        connection.send_request(ApiKey.API_VERSIONS, 0, b"", flexible=False)
        assert struct.unpack_from(">h", connection.read_frame(), 4) == (0,)


@pytest.mark.parametrize("key", [-1, 4, 5, 6, 7, 56, 999, 32767])
def test_unknown_api_closes_the_connection_with_one_line(watched: Appliance, key: int) -> None:
    lines = Lines(watched)
    header = struct.pack(">hhi", key, 0, 1) + nullable_string("stranger")
    how, answer = outcome(watched, struct.pack(">i", len(header)) + header)
    assert (how, answer) == ("closed", b"")
    wait_until(lambda: len(lines.containing("is not served")) == 1, "one line")


@pytest.mark.parametrize("key", sorted(set(SERVED_VERSIONS) - {ApiKey.API_VERSIONS}))
def test_version_out_of_range_closes_the_connection(broker: Appliance, key: int) -> None:
    low, high = SERVED_VERSIONS[key][:2]
    for version in (low - 1, high + 1):
        header = struct.pack(">hhi", key, version, 1) + nullable_string("stranger")
        assert outcome(broker, struct.pack(">i", len(header)) + header) == ("closed", b"")


def test_what_a_client_names_itself_cannot_forge_a_line(watched: Appliance) -> None:
    lines = Lines(watched)
    header = struct.pack(">hhi", ApiKey.METADATA, 1, 1) + nullable_string(
        "a\nERROR supervisor: all is lost\x1b[2J"
    )
    frame = header + struct.pack(">i", 1 << 30)
    assert outcome(watched, struct.pack(">i", len(frame)) + frame)[0] == "closed"
    wait_until(lambda: bool(lines.containing(" closed: ")), "the line")
    assert [line for line in lines.new() if line.startswith("ERROR") or "\x1b" in line] == []


def test_what_was_asked_before_a_malformed_frame_is_answered(broker: Appliance) -> None:
    header = struct.pack(">hhi", ApiKey.API_VERSIONS, 0, 1) + nullable_string("raw")
    good = struct.pack(">i", len(header)) + header
    with WireSocket(broker.port) as connection:
        connection.send(good + good + bytes(4))
        connection.read_frame()
        connection.read_frame()
        assert connection.ends_without_an_answer()


def test_flood_of_tagged_fields_in_the_header_is_refused_unread(watched: Appliance) -> None:
    header = struct.pack(">hhi", ApiKey.METADATA, 12, 1) + nullable_string(None)
    fields = b"\x00\x00" * ((FRAME_BYTES_MAX - 100) // 2)
    frame = header + b"\x90\xa1\x0f" + fields
    lines = Lines(watched)
    assert outcome(watched, struct.pack(">i", len(frame)) + frame) == ("closed", b"")
    wait_until(lambda: bool(lines.containing("tagged fields")), "a line about tagged fields")


def test_thousands_of_malformed_frames_leave_no_memory_behind(broker: Appliance) -> None:
    frames = [from_hex(file.read_text()) for file in INVALID]
    bulk = produce_frame("no-such-topic", bytes(FRAME_BYTES_MAX - 200))[:-1]

    def attack() -> None:
        for frame in frames:
            outcome(broker, frame)
        for _ in range(20):
            outcome(broker, bulk)

    attack()
    before = family_pss_bytes(broker)
    for _ in range(5):
        attack()
    growth = family_pss_bytes(broker) - before
    assert growth < LASTING_GROWTH_BYTES, f"{growth / MIB:.1f} MiB"


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("name", [b"\x00", b"\x02a"], ids=["without-a-name", "with-a-name"])
def test_topic_id_in_a_version_that_must_not_use_it_is_refused(
    broker: Appliance, version: int, name: bytes
) -> None:
    topics = b"\x02" + bytes(range(16)) + name + b"\x00"
    cluster_operations = b"\x00" if version == 10 else b""
    with WireSocket(broker.port) as connection:
        body = topics + b"\x00" + cluster_operations + b"\x00\x00"
        connection.send_request(ApiKey.METADATA, version, body, flexible=True)
        answer = connection.read_frame()
    size = len(answer).to_bytes(4)
    _, response = decode_response(ApiKey.METADATA, version, memoryview(size + answer))
    (topic,) = response.topics
    # As Apache Kafka 4.3, byte for byte in what it says of the cluster, too: nothing.
    assert (topic.error_code, topic.name) == (42, "" if name == b"\x00" else "a")
    assert topic.topic_id == UUID(bytes=bytes(range(16)))
    assert (response.brokers, response.cluster_id, response.controller_id) == ((), None, -1)
