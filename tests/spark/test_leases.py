"""Leases from the reader's side: they live as long as somebody reads, and end with the query. No Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.clock import ManualClock, SystemClock
from appliance.log.reader_leases import GRACE_MS, LEASE, LEASES_MAX, READERS, REVOKED, LeaseBook
from spark_connector import beats
from spark_connector import lease as leases
from spark_connector.batch_query import Plan, plan_batch
from spark_connector.directory import Directories, PartitionView
from spark_connector.errors import TooManyReaders
from spark_connector.lease import STOPPED_TTL_MS, TaskLease, take_lease
from spark_connector.options import read_options
from spark_connector.scan import scan
from spark_connector.stream_query import StreamQuery
from spark_connector.views import count_records, plan_view
from tests.cli.command import environment
from tests.log.batches import batch_of
from tests.spark.logs import filled, make_log, publish

DAY_S = 86_400


def files(home: Path, suffix: str = LEASE) -> list[Path]:
    return sorted(home.glob(f"*/{READERS}/*{suffix}"))


def left_ms(path: Path) -> float:
    """How long a lease file holds from now on, should nobody touch it."""
    ttl_ms: int = json.loads(path.read_bytes())["ttl_ms"]
    return ttl_ms - (time.time() - path.stat().st_mtime) * 1000


def age(path: Path, by_s: float) -> None:
    moment = path.stat().st_mtime - by_s
    os.utime(path, (moment, moment))


def planned(home: Path, **given: str) -> Plan:
    return plan_batch(read_options({"path": str(home), "subscribe": "orders", **given}, streaming=False))


def view_of(home: Path, partition: int = 0) -> PartitionView:
    return Directories([home]).partition("orders", partition)


def two_partitions(home: Path) -> None:
    filled(home)
    log, state_file = make_log(home, "orders-1")
    log.append(batch_of([b"v"]), leader_epoch=0)
    publish(log, state_file)


def streamed(home: Path, **given: str) -> StreamQuery:
    options = {"path": str(home), "subscribe": "orders", "startingOffsets": "earliest", **given}
    return StreamQuery(read_options(options, streaming=True))


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def drain(plan: Plan) -> None:
    for task in plan.tasks:
        for _ in scan(task):
            pass


def test_leases_of_a_query_whose_tasks_have_ended_expire_soon(tmp_path: Path) -> None:
    two_partitions(tmp_path)
    plan = planned(tmp_path, maxRecordsPerPartition="50")
    assert len(plan.tasks) > 3
    for task in plan.tasks[:-1]:
        for _ in scan(task):
            pass
    assert all(left_ms(path) > 500_000 for path in files(tmp_path)), "one task has not ended"
    drain(replace(plan, tasks=plan.tasks[-1:]))
    assert len(files(tmp_path)) == 2
    assert all(0 < left_ms(path) <= GRACE_MS for path in files(tmp_path))


def test_the_owner_removes_the_leases_of_a_query_that_has_ended(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    drain(planned(tmp_path))
    clock = ManualClock(SystemClock().now_ms())
    book = LeaseBook(clock, max_bytes=1 << 30, max_ms=3_600_000, warn=pytest.fail)
    book.sweep([log.directory])
    assert len(files(tmp_path)) == 1
    clock.advance(GRACE_MS)
    book.sweep([log.directory])
    assert files(tmp_path) == []


def test_a_task_that_is_read_twice_counts_once(tmp_path: Path) -> None:
    filled(tmp_path)
    plan = planned(tmp_path, maxRecordsPerPartition="60")
    assert len(plan.tasks) == 3
    for task in (plan.tasks[0], plan.tasks[0], plan.tasks[1]):
        drain(replace(plan, tasks=(task,)))
    assert left_ms(*files(tmp_path)) > 500_000
    drain(replace(plan, tasks=plan.tasks[2:]))
    assert left_ms(*files(tmp_path)) <= GRACE_MS


def test_a_task_that_reads_a_plan_once_more_keeps_every_partition_of_the_query(tmp_path: Path) -> None:
    two_partitions(tmp_path)
    plan = planned(tmp_path)
    drain(plan)
    assert all(left_ms(path) <= GRACE_MS for path in files(tmp_path))
    reading = scan(plan.tasks[0])
    next(reading)
    assert all(left_ms(path) > 500_000 for path in files(tmp_path))
    list(reading)
    assert all(left_ms(path) <= GRACE_MS for path in files(tmp_path))


def test_a_task_keeps_the_leases_of_partitions_whose_tasks_wait_for_their_turn(tmp_path: Path) -> None:
    two_partitions(tmp_path)
    plan = planned(tmp_path)
    for path in files(tmp_path):
        age(path, 400)
    reading = scan(plan.tasks[0])
    next(reading)
    assert all(left_ms(path) > 590_000 for path in files(tmp_path))
    list(reading)


def test_a_slow_task_keeps_its_lease_though_nobody_takes_its_rows(tmp_path: Path) -> None:
    filled(tmp_path)
    plan = planned(tmp_path, leaseDuration="1s")
    reading = scan(plan.tasks[0])
    next(reading)
    (path,) = files(tmp_path)
    before = path.stat().st_mtime_ns
    eventually(lambda: path.stat().st_mtime_ns > before, "nobody touches the lease")
    path.unlink()
    eventually(path.exists, "nobody writes the lease anew")
    list(reading)


def test_a_revoked_lease_is_not_written_anew(tmp_path: Path) -> None:
    filled(tmp_path)
    plan = planned(tmp_path)
    (path,) = files(tmp_path)
    path.rename(path.with_suffix(REVOKED))
    task = plan.tasks[0]
    assert task.lease is not None
    TaskLease(task.lease, task.homes, name=task.name, directory=task.directory).beat()
    assert files(tmp_path) == []
    held = take_lease([(view_of(tmp_path), 0)], owner="tests")
    (path,) = files(tmp_path)
    path.rename(path.with_suffix(REVOKED))
    assert held.renew() == ["orders-0"]


def test_a_plan_that_reads_nothing_leaves_no_lease(tmp_path: Path) -> None:
    filled(tmp_path)
    for name in ("segments", "transactions", "partitions"):
        plan_view(read_options({"path": str(tmp_path), "subscribe": "orders", "view": name}, streaming=False))
    assert files(tmp_path) == []
    assert count_records(read_options({"path": str(tmp_path), "subscribe": "orders"}, streaming=False)) == 180
    assert files(tmp_path) == []


def test_planning_removes_what_dead_readers_of_this_host_have_left(tmp_path: Path) -> None:
    filled(tmp_path)
    for _ in range(60):
        drain(planned(tmp_path))
        for path in files(tmp_path):
            age(path, DAY_S)
    foreign = files(tmp_path)[0]
    foreign.write_bytes(foreign.read_bytes().replace(b'"host": "', b'"host": "another-'))
    age(foreign, DAY_S)
    for _ in range(3):
        planned(tmp_path)
    assert foreign in files(tmp_path)
    assert len(files(tmp_path)) == 4
    assert len(files(tmp_path, ".tally")) <= 4


def test_a_reader_beyond_the_bound_is_rejected_with_a_clear_error_and_the_others_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LEASES_MAX == 1000
    monkeypatch.setattr(leases, "LEASES_MAX", 30)
    filled(tmp_path)
    for _ in range(30):
        planned(tmp_path)
    before = files(tmp_path)
    with pytest.raises(
        TooManyReaders, match="orders-0: 30 readers have leases there, and a partition takes 30"
    ):
        planned(tmp_path)
    assert files(tmp_path) == before
    for path in before[:20]:
        age(path, DAY_S)
    planned(tmp_path)
    assert len(files(tmp_path)) == 11


def test_a_stream_that_was_stopped_at_its_end_leaves_no_lease(tmp_path: Path) -> None:
    filled(tmp_path)
    query = streamed(tmp_path)
    end = query.next(query.initial())
    assert query.next(end) == end
    query.stop()
    assert files(tmp_path) == []


def test_a_stream_that_was_stopped_on_its_way_holds_the_rest_for_a_restart(tmp_path: Path) -> None:
    filled(tmp_path)
    query = streamed(tmp_path)
    end = query.next(query.initial(), most=20)
    query.next(end, most=20)
    query.stop()
    (path,) = files(tmp_path)
    told = json.loads(path.read_bytes())
    assert (told["ttl_ms"], told["from_offset"]) == (STOPPED_TTL_MS, 20)
    again = streamed(tmp_path)
    again.next(end)
    assert files(tmp_path) == [path]
    assert json.loads(path.read_bytes())["ttl_ms"] == leases.STREAM_TTL_MS


STOPPED_TWICE = """
import os, signal, sys
from importlib.machinery import ModuleSpec

sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.sql.streaming.python_streaming_source_runner", None)
from spark_connector.columns import TYPES, Columns, schema_of
from spark_connector.options import read_options
from spark_connector.stream_reader import StreamReader

options = read_options({"path": sys.argv[1], "subscribe": "orders", "startingOffsets": "latest"}, streaming=True)
reader = StreamReader(options, Columns.of(schema_of(tuple(TYPES))))
try:
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.latestOffset(start, reader.getDefaultReadLimit())
    print("ready", flush=True)
    signal.pause()
finally:
    os.kill(os.getpid(), signal.SIGTERM)
    reader.stop()
"""
"""A stream's process of the driver; the second signal comes when it has begun to stop."""


def test_a_stream_that_spark_stops_with_two_signals_releases_its_lease(tmp_path: Path) -> None:
    """Spark sends one to the worker, and one when it stops the factory of workers."""
    filled(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED_TWICE, tmp_path], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert len(files(tmp_path)) == 1
    process.terminate()
    assert process.wait(30) == 0
    assert not files(tmp_path)


def test_a_stream_keeps_its_lease_though_no_trigger_comes(tmp_path: Path) -> None:
    filled(tmp_path)
    query = streamed(tmp_path, leaseDuration="1s")
    query.initial()
    (path,) = files(tmp_path)
    before = path.stat().st_mtime_ns
    eventually(lambda: path.stat().st_mtime_ns > before, "nobody touches the lease")
    del query  # as if its process had died
    time.sleep(1)
    before = path.stat().st_mtime_ns
    time.sleep(1)
    assert path.stat().st_mtime_ns == before


def test_the_thread_of_beats_ends_with_the_last_caller_and_a_fork_begins_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beats, "BEAT_S", 0.05)
    called = threading.Event()

    class Caller:
        def beat(self) -> None:
            called.set()

    caller = Caller()
    number = beats.start_beating(caller, ttl_ms=60)
    assert called.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if beats._beats._thread is None and not beats._beats._callers else 1)
    assert os.waitpid(child, 0)[1] == 0
    beats.stop_beating(number)
    eventually(lambda: beats._beats._thread is None, "the thread does not end")
