"""What a pushed Fetch response holds: its error, its records' size, and the offset behind its last whole batch. Pure.

A push is a Fetch response, version 4, of one topic and one partition:

    correlation id int32 · throttle ms int32 · 1 int32 · topic string · 1 int32
    partition int32 · error int16 · high watermark int64 · last stable offset int64
    aborted transactions int32 [ producer id int64 · first offset int64 ] · records size int32 · records

A client that is over its quota is answered without a topic.

The records are whole batches of magic 2, of which the last may be cut off: the next push begins with it again. Logs
hold no other magic: Produce refuses it, and so does the adoption of Kafka's directories. An old message has no last
offset delta, so that it would be misread here.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from appliance.errors import MalformedFrame

VERSION: Final = 4
UNKNOWN_TOPIC: Final = 3
"""Kafka's error UNKNOWN_TOPIC_OR_PARTITION."""
_FETCH: Final = 1
_REQUEST_HEAD: Final = Struct(">hhi")
_REQUEST: Final = Struct(">iiiibi")
_REQUEST_PARTITION: Final = Struct(">iiqi")
_RESPONSE_HEAD: Final = Struct(">iiih")
_RESPONSE_PARTITION: Final = Struct(">iihqqii")
_TO_TOPICS: Final = 8
_TO_TOPIC: Final = 12
_NO_TOPICS: Final = bytes(4)
_TO_ERROR: Final = 8
_PARTITION: Final = Struct(">hqqi")
_ABORTED_BYTES: Final = 16
_SIZE: Final = Struct(">i")
_BATCH: Final = Struct(">qi4xB6xi")
"""Base offset, length of what follows the first 12 bytes, magic, last offset delta."""
_MAGIC: Final = 2
_LENGTH_END: Final = 12


def fetch_request(
    topic: str, partition: int, offset: int, *, isolation: int, max_bytes: int, max_wait_ms: int
) -> bytes:
    """Return a Fetch request without its size, with an empty client id."""
    name = topic.encode()
    return b"".join(
        (
            _REQUEST_HEAD.pack(_FETCH, VERSION, 0),
            b"\0\0",
            _REQUEST.pack(-1, max_wait_ms, 1, max_bytes, isolation, 1),
            len(name).to_bytes(2, "big"),
            name,
            _REQUEST_PARTITION.pack(1, partition, offset, max_bytes),
        )
    )


def error_response(topic: str, partition: int, error: int) -> bytes:
    """Return a response that has an error and no records."""
    name = topic.encode()
    return b"".join(
        (
            _RESPONSE_HEAD.pack(0, 0, 1, len(name)),
            name,
            _RESPONSE_PARTITION.pack(1, partition, error, -1, -1, 0, 0),
        )
    )


class Pushed:
    """One response, from its head on.

    Args:
        head: its first piece, which holds everything before the records.
        topic_bytes: the length of the topic's name.

    Raises:
        MalformedFrame: the head is not as above.
    """

    __slots__ = ("_begun", "_left", "_passing", "error", "next_offset", "records_bytes")

    def __init__(self, head: bytes | memoryview, topic_bytes: int) -> None:
        self.next_offset = -1  # no whole batch has passed yet
        if head[_TO_TOPICS:_TO_TOPIC] == _NO_TOPICS:
            self.error = self.records_bytes = self._left = 0
            return
        at = _TO_TOPIC + 2 + topic_bytes + _TO_ERROR
        if len(head) < at + _PARTITION.size:
            raise MalformedFrame(f"a Fetch response with a head of {len(head)} bytes")
        self.error, _, _, aborted = _PARTITION.unpack_from(head, at)
        at += _PARTITION.size + _ABORTED_BYTES * max(aborted, 0)
        if len(head) < at + _SIZE.size:
            raise MalformedFrame(f"a Fetch response with a head of {len(head)} bytes")
        self.records_bytes = max(0, _SIZE.unpack_from(head, at)[0])
        self._left = at + _SIZE.size  # until the records begin, or the batch ends that is passing
        self._passing = -1  # the offset behind that batch
        self._begun = b""  # of a batch's header

    def pass_on(self, data: bytes | memoryview) -> None:
        """Look at the next bytes of the response, which are sent now.

        Raises:
            MalformedFrame: a batch that is shorter than its header, or is not of magic 2.
        """
        at, end = 0, len(data)
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                at += step
                self._left -= step
                if not self._left and self._passing >= 0:
                    self.next_offset, self._passing = self._passing, -1
                continue
            wanted = _BATCH.size - len(self._begun)
            self._begun += bytes(data[at : at + wanted])
            at = min(at + wanted, end)
            if len(self._begun) == _BATCH.size:
                base_offset, length, magic, last_delta = _BATCH.unpack(self._begun)
                self._begun = b""
                self._left = _LENGTH_END + length - _BATCH.size
                self._passing = base_offset + last_delta + 1
                if self._left <= 0 or magic != _MAGIC:
                    raise MalformedFrame(
                        f"a batch of {length} bytes and magic {magic} at offset {base_offset}"
                    )
