"""Requests written by hand and answers read by hand, for tests that must say what no client library says.

Produce goes as v8, the last version without compact lengths: its fields can be counted on a page. Only
`flexible_produce_body` writes a later version.

    request   transactional id string? · acks int16 · timeout ms int32 · topics [ name string · partitions
              [ index int32 · records bytes? ] ]
    answer    topics [ name · partitions [ index int32 · error int16 · base offset int64 · append time int64
              · log start int64 · record errors [ index int32 · message string? ] · message string? ] ] · throttle
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest, TopicConfig
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.framing import SIZE
from appliance.protocol.primitives import compact_octets_bytes, compact_string_bytes
from tests.support.broker import Appliance
from tests.support.wire import PATIENCE_S, WireSocket, nullable_string

PRODUCE: Final = 0
FETCH: Final = 1
PRODUCE_VERSION: Final = 8
MIB: Final = 1 << 20

_PARTITION_ANSWER: Final = struct.Struct(">ihqqq")


@dataclass(frozen=True, slots=True)
class Produced:
    """One partition's answer."""

    error: int
    base_offset: int
    message: str | None
    record_errors: dict[int, str | None] = field(default_factory=dict)
    log_start: int = -1


def produce_body(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, timeout_ms: int = 30_000
) -> bytes:
    """The body of a Produce request for one partition; `records` need not be any."""
    length = -1 if records is None else len(records)
    return b"".join(
        (
            nullable_string(None),
            struct.pack(">hii", acks, timeout_ms, 1),
            nullable_string(topic),
            struct.pack(">iii", 1, partition, length),
            records or b"",
        )
    )


def flexible_produce_body(
    transactional_id: str | None, topic: str, records: bytes, *, partition: int = 0
) -> bytes:
    """The body of a Produce request of version 9 to 12 for one partition."""
    return b"".join(
        (
            compact_string_bytes(transactional_id),
            struct.pack(">hi", -1, 30_000),
            b"\x02" + compact_string_bytes(topic),
            b"\x02" + struct.pack(">i", partition) + compact_octets_bytes(records) + bytes(3),
        )
    )


def produce_frame(topic: str, records: bytes | None, *, correlation_id: int = 1, acks: int = -1) -> bytes:
    """A whole Produce request, size prefix included."""
    header = struct.pack(">hhi", PRODUCE, PRODUCE_VERSION, correlation_id) + nullable_string("raw")
    payload = header + produce_body(topic, records, acks=acks)
    return SIZE.pack(len(payload)) + payload


def read_produced(answer: bytes) -> Produced:
    """The one partition of a Produce answer (without its size prefix)."""
    position = 8
    position += 2 + struct.unpack_from(">h", answer, position)[0] + 4
    _, error, base_offset, _, log_start = _PARTITION_ANSWER.unpack_from(answer, position)
    position += _PARTITION_ANSWER.size
    (count,) = struct.unpack_from(">i", answer, position)
    position += 4
    record_errors: dict[int, str | None] = {}
    for _ in range(count):
        (index,) = struct.unpack_from(">i", answer, position)
        record_errors[index], position = _read_string(answer, position + 4)
    text, _ = _read_string(answer, position)
    return Produced(error, base_offset, text, record_errors, log_start)


def _read_string(answer: bytes, position: int) -> tuple[str | None, int]:
    """A nullable string, and the position behind it."""
    (length,) = struct.unpack_from(">h", answer, position)
    position += 2
    if length < 0:
        return None, position
    return answer[position : position + length].decode(), position + length


def produce(
    connection: WireSocket, topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1
) -> Produced:
    """Sends one batch and reads the answer."""
    body = produce_body(topic, records, partition=partition, acks=acks)
    correlation_id = connection.send_request(PRODUCE, PRODUCE_VERSION, body, flexible=False)
    answer = connection.read_frame()
    assert struct.unpack_from(">i", answer)[0] == correlation_id
    return read_produced(answer)


def ask(connection: WireSocket, api: ApiKey, request: Any, *, version: int | None = None) -> Any:
    """Sends a request of any API but Produce and Fetch; its response's shape."""
    version = api.max_version if version is None else version
    connection.send(messages.encode_request(api, version, request, 77, client_id="raw"))
    body = connection.read_frame()
    correlation_id, response = messages.decode_response(api, version, memoryview(SIZE.pack(len(body)) + body))
    assert correlation_id == 77
    return response


def create_topic(
    port: int,
    name: str,
    *,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    timeout_ms: int = 30_000,
) -> int:
    """CreateTopics; the topic's error code."""
    wanted = tuple(TopicConfig(key, value) for key, value in (configs or {}).items())
    topic = CreatableTopic(name, partitions, -1, configs=wanted)
    with WireSocket(port, timeout_s=60) as connection:
        response = ask(connection, ApiKey.CREATE_TOPICS, CreateTopicsRequest((topic,), timeout_ms, False))
    error: int = response.topics[0].error_code
    return error


def new_producer_id(port: int) -> tuple[int, int]:
    """(producer id, producer epoch) of a new idempotent producer."""
    with WireSocket(port) as connection:
        response = ask(connection, ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None, 60_000))
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


def wait_until(true: Callable[[], bool], what: str, *, timeout_s: float = PATIENCE_S) -> None:
    """Returns when `true()` is; asks again often, since nobody can ring our bell from inside of the appliance."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)


def suspend(pid: int) -> None:
    """SIGSTOP; returns when the process stands still, which it need not do before the next thing happens."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is stopped")


def generations(broker: Appliance) -> dict[str, tuple[int, int]]:
    """Role → (pid, generation) of all that live: unchanged means that no process was restarted."""
    return {row.role: (row.pid, row.generation) for row in broker.processes()}


def pss_bytes(pid: int) -> int:
    """Proportional share of a process's memory, shared memory included."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def private_bytes(pid: int) -> int:
    """Memory that is this process's alone and anonymous: its heap, not the pages it shares or maps from files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))


def family_pss_bytes(broker: Appliance) -> int:
    """PSS of all processes of the appliance."""
    total = 0
    for process in broker.family():
        try:
            total += pss_bytes(process.pid)
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            continue
    return total


@dataclass(slots=True)
class Lines:
    """What the appliance says from now on."""

    broker: Appliance
    since: int = field(init=False)

    def __post_init__(self) -> None:
        self.since = len(self.broker.output())

    def new(self) -> list[str]:
        """The lines since, whole ones."""
        return self.broker.output()[self.since :].splitlines()

    def containing(self, text: str) -> list[str]:
        return [line for line in self.new() if text in line]
