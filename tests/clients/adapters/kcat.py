"""kcat behind the common vocabulary: Debian's, with librdkafka 2.0.2 of 2023.

A call is a process. kcat reads records between delimiters from its standard input and takes headers and the
meaning of emptiness from its flags, so records of one shape that follow each other share a call.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from tests.clients.client import (
    MESSAGE_TOO_LARGE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    Header,
    Position,
    Received,
    Record,
    RefusedError,
)

RECORD_END: Final = b"<~record~>"
KEY_END: Final = b"<~key~>"

# One line that says how long the raw bytes after it are.
FORMAT: Final = "%o %T %K %S %h\n%k%s\n"

WORDS: Final = {
    "Offset out of range": OFFSET_OUT_OF_RANGE,
    "Unknown topic": UNKNOWN_TOPIC_OR_PARTITION,
    "Message size too large": MESSAGE_TOO_LARGE,
}

NO_ADMIN: Final = "has no admin calls"


class KcatClient(Client):
    """The command line client that Debian ships."""

    name: ClassVar[str] = "kcat"
    sets_timestamps: ClassVar[bool] = False
    left_out: ClassVar[Mapping[str, str]] = {
        "null-beside-empty": "has one flag for both: all that is empty is null, or nothing is",
        "nothing-at-all": "skips a record with neither key nor value",
        "acked-positions": "tells no positions",
        "offset-of-max-timestamp": "old librdkafka knows no such look-up",
        "create-and-delete-topic": NO_ADMIN,
        "recreate-topic": NO_ADMIN,
        "create-partitions": NO_ADMIN,
        "topic-settings": NO_ADMIN,
        "settings-of-no-topic": NO_ADMIN,
        "cluster": "prints no cluster id",
    }

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Position]:
        flags = ["-P", "-t", topic, "-D", RECORD_END.decode()]
        flags += ["-X", f"compression.codec={codec}", "-X", f"acks={acks}"]
        flags += ["-X", f"enable.idempotence={str(idempotent).lower()}"]
        flags += ["-X", "message.max.bytes=20000000", "-X", "queue.buffering.max.messages=200000"]
        flags += ["-X", "topic.metadata.propagation.max.ms=3000"]
        for (partition, shape, headers), run in itertools.groupby(records, _call_of):
            ending = [] if partition is None else ["-p", str(partition)]
            for name, value in headers:
                ending += ["-H", name if value is None else f"{name}={_text(value)}"]
            self._run([*flags, *shape, *ending], b"".join(map(_input_of, run)))
        return []

    def consume(
        self,
        topic: str,
        partition: int,
        *,
        start: int,
        count: int,
        reset: str = "none",
        max_wait_ms: int = 500,
        timeout_s: float = 60.0,
    ) -> list[Received]:
        flags = [
            "-C",
            "-t",
            topic,
            "-p",
            str(partition),
            "-o",
            str(start),
            "-c",
            str(count),
            "-q",
            "-f",
            FORMAT,
        ]
        flags += ["-X", f"topic.auto.offset.reset={'error' if reset == 'none' else reset}"]
        flags += ["-X", f"fetch.wait.max.ms={max_wait_ms}", "-X", "check.crcs=true"]
        flags += ["-X", f"socket.timeout.ms={max_wait_ms + 60_000}"]
        return _parse(self._run(flags, timeout_s=timeout_s), partition)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        offset = self._query(topic, partition, timestamp_ms)
        return None if offset < 0 else offset

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        return self._query(topic, partition, -2), self._query(topic, partition, -1)

    def topics(self) -> dict[str, int]:
        told = json.loads(self._run(["-L", "-J"]))
        return {topic["topic"]: len(topic["partitions"]) for topic in told["topics"]}

    def _query(self, topic: str, partition: int, timestamp_ms: int) -> int:
        answer = self._run(["-Q", "-t", f"{topic}:{partition}:{timestamp_ms}"]).decode()
        found = re.search(r"offset (-?\d+)", answer)
        assert found, answer
        return int(found[1])

    def _run(self, flags: Sequence[str], given: bytes = b"", *, timeout_s: float = 60.0) -> bytes:
        command = ["kcat", "-b", self.address, "-X", "broker.address.family=v4", "-m", "10", *flags]
        encoded = [word.encode("utf-8", "surrogateescape") for word in command]
        try:
            done = subprocess.run(encoded, input=given, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as expired:
            raise TimeoutError(f"{flags}: {expired.stderr!r}") from None
        if done.returncode:
            words = done.stderr.decode()
            raise RefusedError(next((code for text, code in WORDS.items() if text in words), -1), words)
        return done.stdout


def _call_of(record: Record) -> tuple[int | None, tuple[str, ...], tuple[Header, ...]]:
    """What records of one call must have in common."""
    shape: tuple[str, ...] = ()
    if record.key is not None:
        shape += ("-K", KEY_END.decode())
    if record.value is None:
        assert record.key, "kcat cannot say that a key is empty and the value null"
        shape += ("-Z",)
    else:
        assert record.value or record.key is not None, "kcat skips a record without key and value"
    return record.partition, shape, record.headers


def _input_of(record: Record) -> bytes:
    key = b"" if record.key is None else record.key + KEY_END
    return key + (record.value or b"") + RECORD_END


def _parse(output: bytes, partition: int) -> list[Received]:
    received = []
    position = 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        offset, timestamp, key_length, value_length, headers = output[position:line_end].split(b" ", 4)
        key_end = line_end + 1 + max(0, int(key_length))
        value_end = key_end + max(0, int(value_length))
        received.append(
            Received(
                partition=partition,
                offset=int(offset),
                timestamp_ms=int(timestamp),
                key=None if int(key_length) < 0 else output[line_end + 1 : key_end],
                value=None if int(value_length) < 0 else output[key_end:value_end],
                headers=tuple(_header(each) for each in headers.split(b",") if each),
            )
        )
        position = value_end + 1
    return received


def _header(text: bytes) -> Header:
    name, _, value = text.partition(b"=")
    return name.decode(), None if value == b"NULL" else value


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
