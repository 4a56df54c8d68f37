"""A push goes on behind the last whole batch that was in the one before."""

from __future__ import annotations

import struct
import zlib

import pytest

from appliance.errors import MalformedFrame
from appliance.gateway.pushed import Pushed, error_response
from appliance.protocol.records.record import Record, encode_batch

TOPIC = "orders"


def response(records: bytes, *, error: int = 0, aborted: int = 0) -> bytes:
    head = struct.pack(">iiih", 0, 0, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">ii", 1, 3)
    head += struct.pack(">hqqi", error, 90, 80, aborted) + bytes(16 * max(aborted, 0))
    return head + struct.pack(">i", len(records)) + records


def batch(base_offset: int, records: int) -> bytes:
    return base_offset.to_bytes(8, "big") + encode_batch([Record(b"value")] * records)[8:]


BATCHES = batch(10, 3) + batch(13, 1) + batch(20, 5)
"""Compaction has left a gap."""


@pytest.mark.parametrize("step", [1, 7, 26, 27, 28, 61, 100, 10_000])
@pytest.mark.parametrize("aborted", [-1, 0, 2])
def test_the_next_offset_is_behind_the_last_batch_wherever_the_response_is_cut(
    step: int, aborted: int
) -> None:
    whole = response(BATCHES, aborted=aborted)
    head = len(whole) - len(BATCHES)
    for length, expected in (
        (len(whole), 25),
        (len(whole) - 1, 14),
        (head + len(batch(10, 3)), 13),
        (head + len(batch(10, 3)) - 1, -1),
    ):
        pushed = Pushed(whole[:head], len(TOPIC))
        assert pushed.records_bytes == len(BATCHES)
        for at in range(0, length, step):
            pushed.pass_on(memoryview(whole)[at : min(at + step, length)])
        assert pushed.next_offset == expected


def test_an_error_is_seen_in_the_head() -> None:
    assert Pushed(response(b"", error=3, aborted=-1), len(TOPIC)).error == 3


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_is_refused_and_not_misread(magic: int) -> None:
    body = struct.pack(">bb", magic, 0) + bytes(8 * magic)
    body += struct.pack(">i", -1) + struct.pack(">i", 30) + bytes(30)
    message = struct.pack(">qiI", 5, 4 + len(body), zlib.crc32(body)) + body
    pushed = Pushed(response(b""), len(TOPIC))
    pushed.pass_on(response(b""))
    with pytest.raises(MalformedFrame, match=f"magic {magic}"):
        pushed.pass_on(message)


def test_a_head_that_is_cut_short_is_refused() -> None:
    whole = response(b"", aborted=2)
    for length in range(len(whole)):
        with pytest.raises(MalformedFrame):
            Pushed(whole[:length], len(TOPIC))


def test_an_error_response_is_parsed_as_one() -> None:
    pushed = Pushed(error_response(TOPIC, 3, 29), len(TOPIC))
    assert (pushed.error, pushed.records_bytes) == (29, 0)


def test_an_answer_without_a_topic_has_nothing_to_push() -> None:
    """So a client that is over its quota is answered."""
    pushed = Pushed(memoryview(struct.pack(">iii", 0, 1500, 0)), len(TOPIC))
    assert (pushed.error, pushed.records_bytes) == (0, 0)
