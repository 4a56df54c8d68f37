"""What a broker costs before it is asked anything: start time, memory, processor time, idle connections."""

import time

from benchmarks import proc
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators

NOT_FOR_MOCK = frozenset({"mock"})


def _start(bench: Bench) -> Figures:
    figures = {"ready_ms": bench.broker.start_seconds * 1e3}
    if bench.broker.first_ack_seconds is not None:
        figures["first_ack_ms"] = bench.broker.first_ack_seconds * 1e3
    return figures


def _idle(bench: Bench) -> Figures:
    time.sleep(1.0)  # let the start's own echoes end
    with bench.measure() as broker:
        time.sleep(bench.scale.idle_seconds)
    pids = bench.broker.pids()
    figures = {
        "pss_mb": proc.pss_bytes(pids) / 1e6,
        "cpu_percent": broker.used.cpu_seconds / bench.scale.idle_seconds * 100,
        "switches_s": broker.used.context_switches / bench.scale.idle_seconds,
        "processes": len(pids),
    }
    for pid in pids:
        title = proc.title_of(pid)
        figures[f"pss_mb {title}"] = figures.get(f"pss_mb {title}", 0.0) + proc.pss_bytes([pid]) / 1e6
    return figures


def _idle_connections(bench: Bench) -> Figures:
    connections = bench.scale.idle_connections
    # A first wave, so that what is grown once and kept is not counted as the price of a connection.
    generators.IdleConnections(bench.broker.address, connections // 10).close()
    time.sleep(0.5)
    before = proc.pss_bytes(bench.broker.pids())
    held = generators.IdleConnections(bench.broker.address, connections)
    try:
        time.sleep(0.5)
        grown = proc.pss_bytes(bench.broker.pids()) - before
        with bench.measure() as broker:
            time.sleep(bench.scale.seconds)
    finally:
        held.close()
    return {
        "connects_s": held.connects_s,
        "kb_per_connection": grown / connections / 1e3,
        "cpu_percent": broker.used.cpu_seconds / bench.scale.seconds * 100,
    }


CASES = (
    Case(
        "start",
        "exec to the first acknowledged record, on an empty data directory, byte code warm",
        _start,
        not_for=NOT_FOR_MOCK,
        rounds=1,
        own=True,
    ),
    Case(
        "idle",
        "a fresh broker that nobody asks anything",
        _idle,
        not_for=NOT_FOR_MOCK,
        rounds=1,
        own=True,
    ),
    Case(
        "idle_connections",
        "5,000 open connections that say nothing after ApiVersions",
        _idle_connections,
        not_for=NOT_FOR_MOCK,
        rounds=1,
    ),
)
