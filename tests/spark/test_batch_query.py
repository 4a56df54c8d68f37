"""What the options of a batch query choose, and where it begins and ends. Over files; no broker, no Spark."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.log.config import LogSettings
from spark_connector import batch_reader as reading
from spark_connector.batch_query import plan_batch
from spark_connector.constraints import Constraints
from spark_connector.data_source import ApplianceDataSource
from spark_connector.option_values import InvalidOption
from spark_connector.options import read_options
from spark_connector.record_batches import record_batches
from tests.log.batches import NOW_MS, batch_of
from tests.spark.logs import filled, make_log, publish

ORDERS = {"subscribe": "orders"}
BATCHES = 20
STEP_MS = 10
"""Two records a batch, a batch each ten milliseconds."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("chosen")
    for name in ("bills-0", "orders-0", "orders-1", "__consumer_offsets-0"):
        log, state_file = make_log(found, name)
        for number in range(BATCHES):
            log.append(batch_of([b"a", b"b"], timestamp_ms=NOW_MS + STEP_MS * number), leader_epoch=0)
        publish(log, state_file)
    return found


def read(
    home: Path, given: dict[str, str], *, constraints: Constraints | None = None
) -> dict[tuple[str, int], range]:
    """By partition the offsets that are read, which are without a gap."""
    found: dict[tuple[str, int], list[int]] = {}
    for task in plan_batch(read_options({"path": str(home), **given}, streaming=False), constraints).tasks:
        offsets = found.setdefault((task.topic, task.partition), [])
        for batch in record_batches(task, ("offset",)):
            offsets += batch.column("offset").to_pylist()
    told = {name: range(offsets[0], offsets[-1] + 1) for name, offsets in found.items() if offsets}
    assert all(list(told[name]) == offsets for name, offsets in found.items() if offsets)
    return told


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"subscribe": "orders, bills"}, {("bills", 0), ("orders", 0), ("orders", 1)}),
        ({"subscribePattern": "o.*"}, {("orders", 0), ("orders", 1)}),
        ({"subscribePattern": "order"}, set()),  # a whole name, or none
        ({"subscribePattern": ".*"}, {("bills", 0), ("orders", 0), ("orders", 1)}),  # never an internal topic
        ({"subscribe": "__consumer_offsets"}, {("__consumer_offsets", 0)}),
        ({"assign": '{"orders": [1], "bills": [0]}'}, {("bills", 0), ("orders", 1)}),
    ],
)
def test_what_is_asked_for_is_read_and_nothing_else(
    home: Path, choice: dict[str, str], expected: set[tuple[str, int]]
) -> None:
    assert read(home, choice) == {name: range(40) for name in expected}


def test_offsets_bound_each_partition(home: Path) -> None:
    bounds = {
        "startingOffsets": '{"orders": {"0": 3, "1": -2}}',
        "endingOffsets": '{"orders": {"0": -1, "1": 9}}',
    }
    assert read(home, {**ORDERS, **bounds}) == {("orders", 0): range(3, 40), ("orders", 1): range(9)}


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ("startingOffsets", '{"orders": {"0": 3}}'),
        ("endingOffsets", '{"orders": {"0": 3, "1": 3, "2": 3}}'),
        ("startingOffsetsByTimestamp", '{"bills": {"0": 3}}'),
        ("endingOffsetsByTimestamp", '{"orders": {"1": 3}}'),
    ],
)
def test_a_bound_that_names_not_exactly_what_is_read_is_refused(home: Path, bound: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=f"option {bound}: has to name every partition"):
        read(home, {**ORDERS, bound: text})


def test_moments_bound_all_partitions_or_each(home: Path) -> None:
    since, until = NOW_MS + 3 * STEP_MS - 1, NOW_MS + 7 * STEP_MS
    times = {"startingTimestamp": str(since), "endingTimestamp": str(until)}
    both = {("orders", 0): range(6, 14), ("orders", 1): range(6, 14)}
    assert read(home, {**ORDERS, **times}) == both
    each = {
        "startingOffsetsByTimestamp": json.dumps({"orders": {"0": since, "1": NOW_MS}}),
        "endingOffsetsByTimestamp": json.dumps({"orders": {"0": until, "1": NOW_MS + 10**9}}),
    }
    assert read(home, {**ORDERS, **each}) == {("orders", 0): range(6, 14), ("orders", 1): range(40)}


def test_a_begin_that_no_record_is_as_late_as_is_an_error_or_the_end(home: Path) -> None:
    late = {**ORDERS, "startingTimestamp": str(NOW_MS + 10**9)}
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestampStrategy=latest"):
        read(home, late)
    assert read(home, {**late, "startingOffsetsByTimestampStrategy": "latest"}) == {}


def test_what_the_disk_has_for_good_can_be_the_end(tmp_path: Path) -> None:
    log, state_file = filled(tmp_path)
    said = publish(log, state_file)
    state_file.publish(replace(said, durable=77))
    assert read(tmp_path, {**ORDERS, "endAt": "durable"}) == {("orders", 0): range(77)}
    assert read(tmp_path, ORDERS) == {("orders", 0): range(180)}


def test_a_lease_lasts_as_long_as_was_asked_for(tmp_path: Path) -> None:
    filled(tmp_path)
    read(tmp_path, {**ORDERS, "leaseDuration": "42s"})
    (lease,) = (tmp_path / "orders-0" / ".readers").glob("*.lease")
    assert json.loads(lease.read_bytes())["ttl_ms"] == 42_000


def test_a_promise_of_order_cuts_what_comes_after_a_window(tmp_path: Path) -> None:
    filled(tmp_path)  # three records a batch, a batch each millisecond
    window = Constraints(from_ms=NOW_MS + 5, until_ms=NOW_MS + 6)

    promised = {**ORDERS, "timestampDisorder": "0s"}

    def bytes_planned(given: dict[str, str]) -> int:
        options = read_options({"path": str(tmp_path), **given}, streaming=False)
        return sum(task.size_bytes for task in plan_batch(options, window).tasks)

    assert bytes_planned(promised) < bytes_planned(ORDERS) // 2
    for given in (ORDERS, promised):
        assert read(tmp_path, given, constraints=window) == {("orders", 0): range(15, 18)}


def test_at_least_so_many_tasks_are_made_where_there_is_enough_to_cut(tmp_path: Path) -> None:
    log, state_file = make_log(tmp_path, settings=LogSettings(segment_bytes=1 << 26))
    for _ in range(90):
        log.append(batch_of([os.urandom(1 << 16)]), leader_epoch=0)
    publish(log, state_file)
    options = {"path": str(tmp_path), "subscribe": "orders"}
    assert len(plan_batch(read_options(options, streaming=False)).tasks) == 1
    tasks = plan_batch(read_options({**options, "minPartitions": "4"}, streaming=False)).tasks
    assert len(tasks) >= 4
    assert [task.start for task in tasks[1:]] == [task.end for task in tasks[:-1]]
    assert (tasks[0].start, tasks[-1].end) == (0, 90)


@pytest.mark.parametrize(("pushdown", "kind"), [("auto", "PushedReader"), ("off", "BatchReader")])
def test_conditions_are_left_to_spark_on_request(
    home: Path, monkeypatch: pytest.MonkeyPatch, pushdown: str, kind: str
) -> None:
    # As in the worker in which PySpark plans with filters.
    monkeypatch.setitem(sys.modules, reading._PUSHING_WORKER, sys)
    source = ApplianceDataSource({"path": str(home), "subscribe": "orders", "pushdown": pushdown})
    assert type(source.reader(source.schema())).__name__ == kind
