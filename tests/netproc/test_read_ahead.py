"""Reading ahead: what is handed out is what the file holds, and readers who do not go on cost next to nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.netproc import outlet, read_ahead
from appliance.netproc.connection import Connection
from appliance.netproc.read_ahead import ReadAhead
from appliance.requests.answer import FilePiece
from appliance.requests.segment_files import SegmentFile

CONTENT = bytes(range(256)) * 64
LIMIT_BYTES = 4_096


def opened(path: Path) -> SegmentFile:
    path.write_bytes(CONTENT)
    return SegmentFile(os.open(path, os.O_RDONLY))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SegmentFile]:
    made = opened(tmp_path / "one.log")
    yield made
    if made.fd >= 0:
        made.close()


@pytest.fixture
def ahead() -> ReadAhead:
    return ReadAhead(LIMIT_BYTES)


def test_what_was_expected_is_there_once(ahead: ReadAhead, file: SegmentFile) -> None:
    ahead.expect(file, 100, 4_000)
    taken = ahead.take(file, 100, 3_000)
    assert taken is not None
    assert taken.tobytes() == CONTENT[100:3_100]
    assert ahead.take(file, 100, 3_000) is None


def test_other_bytes_are_not_there(ahead: ReadAhead, file: SegmentFile, tmp_path: Path) -> None:
    ahead.expect(file, 100, 1_000)
    assert ahead.take(file, 101, 900) is None
    other = opened(tmp_path / "other.log")
    assert ahead.take(other, 100, 900) is None
    other.close()
    assert ahead.take(file, 100, 1_001) is None


def test_a_file_that_took_over_a_descriptor_is_another(
    ahead: ReadAhead, file: SegmentFile, tmp_path: Path
) -> None:
    ahead.expect(file, 0, 1_000)
    descriptor = file.fd
    file.close()
    path = tmp_path / "two.log"
    path.write_bytes(bytes(5_000))
    successor = SegmentFile(os.open(path, os.O_RDONLY))
    assert successor.fd == descriptor
    assert ahead.take(successor, 0, 1_000) is None
    successor.close()


def test_less_than_expected_is_not_handed_out(ahead: ReadAhead, file: SegmentFile) -> None:
    ahead.expect(file, len(CONTENT) - 10, 1_000)
    assert ahead.take(file, len(CONTENT) - 10, 1_000) is None
    ahead.expect(file, 0, LIMIT_BYTES + 1)
    assert ahead.take(file, 0, LIMIT_BYTES + 1) is None


def test_who_does_not_go_on_is_seldom_read_ahead_for(ahead: ReadAhead, file: SegmentFile) -> None:
    found = 0
    for position in range(1_000):
        ahead.expect(file, position, 10)
        found += ahead._position == position
    assert found < 30
    while ahead.take(file, ahead._position, 10) is None:
        ahead.expect(file, 5_000, 10)
    for position in range(10):
        ahead.expect(file, position, 10)
        assert ahead.take(file, position, 10) is not None, "it pays again"


def test_a_stretch_that_was_too_short_counts_as_read_in_vain(ahead: ReadAhead, file: SegmentFile) -> None:
    read = 0
    for number in range(1_000):
        position = len(CONTENT) - 1 - number
        ahead.expect(file, position, 2_000)
        read += ahead._position == position
        assert ahead.take(file, position, 2_000) is None
    assert read < 30


@pytest.mark.interpreted
def test_where_the_page_cache_cannot_be_asked_nothing_is_read_ahead(
    ahead: ReadAhead, file: SegmentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_NOWAIT", 0)
    ahead.expect(file, 0, 10)
    assert ahead.take(file, 0, 10) is None


def test_many_small_answers_behind_records_that_were_read_ahead_all_leave(file: SegmentFile) -> None:
    """One system call takes so many pieces and no more; the others follow."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    ours.setblocking(False)
    connection = Connection(
        ours, connection_id=1, slot=0, peer_host="p", peer_port=1, now_ns=0, is_local=True
    )
    connection.was_sent_records = True
    outlet._ahead.expect(file, 0, 1_000)
    file.holders = 1
    small = [bytes([number % 256]) * 20 for number in range(1_500)]
    connection.out = [*reversed(small), FilePiece(file, 0, 1_000)]
    while connection.out:
        outlet.flush(connection)
    expected = CONTENT[:1_000] + b"".join(small)
    got = b""
    while len(got) < len(expected):
        got += client.recv(1 << 16)
    assert got == expected
    client.close()
    ours.close()


def test_a_closed_file_is_no_fault_of_the_answer_before(ahead: ReadAhead, tmp_path: Path) -> None:
    """Its removal was noticed while the answer left: nothing holds it open any more."""
    gone = opened(tmp_path / "gone.log")
    gone.close()
    ahead.expect(gone, 0, 10)
    assert ahead.take(gone, 0, 10) is None
