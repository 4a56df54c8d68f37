"""A client that behaves: produces a batch, fetches it, compares, again and again, beside whatever a test does.

It runs as a process of its own, so that what it measures is the broker and not the test's thread beside it, and it
keeps several connections busy in turn, so that every network process serves one of them.

    with SteadyClient(broker, topic) as steady:
        …
    steady.report.failures == []

The process reads standard input and goes on until its end, then prints its report as JSON. It says `enough` when its
99th percentile is one of many rounds: how long that takes is the machine's affair.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetch
from tests.support.ready import is_readable
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import create_topic, generations, produce

CONNECTIONS: Final = 4
PACE_S: Final = 0.005
ANSWER_TIMEOUT_S: Final = 30.0


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
    produce_own_p99_ms: float = 0.0
    """The same without the time in which a process of the way was ready to run and another one ran (`_kept_ns`)."""
    produce_own_max_ms: float = 0.0
    fetch_own_p99_ms: float = 0.0


class SteadyClient:
    """Starts the process on entering, ends it and reads its report on leaving."""

    def __init__(
        self, broker: Appliance, topic: str, *, record_bytes: int = 100, enough_rounds: int = 300
    ) -> None:
        program = [sys.executable, "-m", "tests.system.steady"]
        way = [broker.pids("netproc"), broker.pids("ioproc")]
        self._command = [
            *program,
            str(broker.port),
            topic,
            str(record_bytes),
            str(enough_rounds),
            json.dumps(way),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._has_enough = False
        self.report = Report()

    def has_enough(self) -> bool:
        """Whether it has done so many rounds that its report says something, or failed in one."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not self._has_enough and is_readable(self._process.stdout):
            self._has_enough = True
            self._process.stdout.readline()
        return self._has_enough

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
        said, _ = self._process.communicate(timeout=240)
        if self._process.returncode == 0:
            self.report = Report(**json.loads(said.splitlines()[-1]))
        elif kind is None:
            raise AssertionError(f"the steady client ended with {self._process.returncode}")


@contextmanager
def undisturbed(broker: Appliance, topic: str = "steady") -> Iterator[SteadyClient]:
    """A steady client beside what the block does to a started `broker`.

    At the end: the client saw no failure, no process was restarted, none wrote a traceback.
    """
    assert create_topic(broker.port, topic) == 0
    before = generations(broker)
    with SteadyClient(broker, topic) as steady:
        yield steady
    failures = [*steady.report.failures, *([] if steady.report.rounds else ["it did nothing"])]
    said = broker.output()
    after = generations(broker)
    changed = {
        role: (after.get(role), before.get(role))
        for role in before | after
        if after.get(role) != before.get(role)
    }
    if failures or changed or "Traceback" in said:
        # Connections closed for what they sent are what such a test is about; what else was said tells more.
        rest = "\n".join(line for line in said.splitlines() if " closed: " not in line)
        raise AssertionError(f"failures {failures}\nrestarted {changed}\n{rest[-8000:]}")


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


def _kept_ns(way: Sequence[Sequence[int]]) -> int:
    """For how long the machine has kept processes of the way waiting that were ready to run.

    Of processes of which one serves a request, the one that waited longest counts. The second number of
    /proc/PID/schedstat (kernel's Documentation/scheduler/sched-stats.rst).
    """
    return sum(max(map(_waited_ns, alternatives), default=0) for alternatives in [[os.getpid()], *way])


def _waited_ns(pid: int) -> int:
    with suppress(OSError):  # it has died; nobody does who is undisturbed
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    return 0


def _run(port: int, topic: str, record_bytes: int, *, enough_rounds: int, way: list[list[int]]) -> Report:
    report = Report()
    produced_ms: list[float] = []
    fetched_ms: list[float] = []
    produced_own_ms: list[float] = []
    fetched_own_ms: list[float] = []
    connections = [WireSocket(port, timeout_s=ANSWER_TIMEOUT_S) for _ in range(CONNECTIONS)]
    filler = bytes(record_bytes)
    is_told_to_stop = select.poll()
    is_told_to_stop.register(sys.stdin, select.POLLIN | select.POLLHUP)
    print("started", flush=True)
    while not is_told_to_stop.poll(PACE_S * 1000):
        connection = connections[report.rounds % CONNECTIONS]
        value = b"%d " % report.rounds + filler
        try:
            kept = [_kept_ns(way)]
            began = time.perf_counter()
            answer = produce(
                connection, topic, encode_batch([Record(value, timestamp_ms=time.time_ns() // 10**6)])
            )
            between = time.perf_counter()
            kept.append(_kept_ns(way))
            sent = time.perf_counter()
            records = fetch(connection, topic, 0, offset=answer.base_offset) if not answer.error else b""
            ended = time.perf_counter()
            kept.append(_kept_ns(way))
        except (OSError, ConnectionEnded, AssertionError) as error:
            report.failures.append(f"round {report.rounds}: {error!r}")
            print("enough", flush=True)
            is_told_to_stop.poll()
            break
        produced_ms.append((between - began) * 1000)
        fetched_ms.append((ended - sent) * 1000)
        produced_own_ms.append(produced_ms[-1] - (kept[1] - kept[0]) / 1e6)
        fetched_own_ms.append(fetched_ms[-1] - (kept[2] - kept[1]) / 1e6)
        if answer.error:
            report.failures.append(f"round {report.rounds}: produce error {answer.error}")
        elif [record.value for record in decode_records(records)][:1] != [value]:
            report.failures.append(f"round {report.rounds}: another record came back")
        report.rounds += 1
        if report.rounds == enough_rounds:
            print("enough", flush=True)
    for connection in connections:
        connection.close()
    ordered = sorted(produced_ms)
    report.produce_p50_ms = ordered[len(ordered) // 2] if ordered else 0.0
    report.produce_p99_ms = _p99(produced_ms)
    report.produce_max_ms = max(produced_ms, default=0.0)
    report.fetch_p99_ms = _p99(fetched_ms)
    report.fetch_max_ms = max(fetched_ms, default=0.0)
    report.produce_own_p99_ms = _p99(produced_own_ms)
    report.produce_own_max_ms = max(produced_own_ms, default=0.0)
    report.fetch_own_p99_ms = _p99(fetched_own_ms)
    return report


if __name__ == "__main__":
    _, _port, _topic, _record_bytes, _enough_rounds, _way = sys.argv
    _report = _run(
        int(_port), _topic, int(_record_bytes), enough_rounds=int(_enough_rounds), way=json.loads(_way)
    )
    print(json.dumps(asdict(_report)))
