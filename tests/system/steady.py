"""A client that behaves: produces a batch, fetches it, compares, again and again, beside whatever a test does.

It runs as a process of its own, so that what it measures is the broker and not the test's thread beside it, and it
keeps several connections busy in turn, so that every network process serves one of them.

    with SteadyClient(port, topic) as steady:
        …
    steady.report.failures == []

The process reads standard input and goes on until its end, then prints its report as JSON.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Final, Self

from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetch
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import create_topic, generations, produce

CONNECTIONS: Final = 4
PACE_S: Final = 0.005
ANSWER_TIMEOUT_S: Final = 15.0


@dataclass(slots=True)
class Report:
    """What happened. Latencies are of one produce or one fetch, in milliseconds."""

    rounds: int = 0
    failures: list[str] = field(default_factory=list)
    produce_p50_ms: float = 0.0
    produce_p99_ms: float = 0.0
    produce_max_ms: float = 0.0
    fetch_p99_ms: float = 0.0
    fetch_max_ms: float = 0.0


class SteadyClient:
    """Starts the process on entering, ends it and reads its report on leaving."""

    def __init__(self, port: int, topic: str, *, record_bytes: int = 100) -> None:
        self._command = [sys.executable, "-m", "tests.system.steady", str(port), topic, str(record_bytes)]
        self._process: subprocess.Popen[str] | None = None
        self.report = Report()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "started\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        said, _ = self._process.communicate(timeout=60)
        if self._process.returncode == 0:
            self.report = Report(**json.loads(said))
        elif kind is None:
            raise AssertionError(f"the steady client ended with {self._process.returncode}")


@contextmanager
def undisturbed(broker: Appliance, topic: str = "steady") -> Iterator[SteadyClient]:
    """A steady client beside what the block does to a started `broker`.

    At the end: the client saw no failure, no process was restarted, none wrote a traceback.
    """
    assert create_topic(broker.port, topic) == 0
    before = generations(broker)
    with SteadyClient(broker.port, topic) as steady:
        yield steady
    failures = [*steady.report.failures, *([] if steady.report.rounds else ["it did nothing"])]
    said = broker.output()
    changed = {
        role: (now, before.get(role)) for role, now in generations(broker).items() if now != before.get(role)
    }
    if failures or changed or "Traceback" in said:
        # Connections closed for what they sent are what such a test is about; what else was said tells more.
        rest = "\n".join(line for line in said.splitlines() if " closed: " not in line)
        raise AssertionError(f"failures {failures}\nrestarted {changed}\n{rest[-8000:]}")


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


def _run(port: int, topic: str, record_bytes: int) -> Report:
    report = Report()
    produced_ms: list[float] = []
    fetched_ms: list[float] = []
    connections = [WireSocket(port, timeout_s=ANSWER_TIMEOUT_S) for _ in range(CONNECTIONS)]
    filler = bytes(record_bytes)
    is_told_to_stop = select.poll()
    is_told_to_stop.register(sys.stdin, select.POLLIN | select.POLLHUP)
    print("started", flush=True)
    while not is_told_to_stop.poll(PACE_S * 1000):
        connection = connections[report.rounds % CONNECTIONS]
        value = b"%d " % report.rounds + filler
        try:
            began = time.perf_counter()
            answer = produce(
                connection, topic, encode_batch([Record(value, timestamp_ms=time.time_ns() // 10**6)])
            )
            between = time.perf_counter()
            records = fetch(connection, topic, 0, offset=answer.base_offset) if not answer.error else b""
            ended = time.perf_counter()
        except (OSError, ConnectionEnded, AssertionError) as error:
            report.failures.append(f"round {report.rounds}: {error!r}")
            break
        produced_ms.append((between - began) * 1000)
        fetched_ms.append((ended - between) * 1000)
        if answer.error:
            report.failures.append(f"round {report.rounds}: produce error {answer.error}")
        elif [record.value for record in decode_records(records)][:1] != [value]:
            report.failures.append(f"round {report.rounds}: another record came back")
        report.rounds += 1
    for connection in connections:
        connection.close()
    ordered = sorted(produced_ms)
    report.produce_p50_ms = ordered[len(ordered) // 2] if ordered else 0.0
    report.produce_p99_ms = _p99(produced_ms)
    report.produce_max_ms = max(produced_ms, default=0.0)
    report.fetch_p99_ms = _p99(fetched_ms)
    report.fetch_max_ms = max(fetched_ms, default=0.0)
    return report


if __name__ == "__main__":
    print(json.dumps(asdict(_run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))))
