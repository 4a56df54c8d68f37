"""Consumer groups: commits a second, a rebalance, and what ten thousand groups cost."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing

from benchmarks import proc
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.load.members import Group

NOT_FOR_MOCK = frozenset({"mock"})
MEMBERS, PARTITIONS = 50, 200
OFFSETS_A_GROUP = 100
WRITING_SECONDS_MAX = 120
LOOKED_AT_GROUPS = 300
"""So many that each partition of the internal topic has one of them."""
CHECKED_GROUPS = 20
"""Whose offsets are read back after each death."""


def _commits(members: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        topic = bench.topic(MEMBERS)
        with bench.measure() as broker:
            asked = generators.one_record(
                "commit", bench.broker.address, topic=topic, seconds=bench.scale.seconds, connections=members
            )
        generators.check_committed(bench.broker.address, topic, generators.last_committed(asked), groups=[0])
        return {
            "commits_s": asked.requests_s,
            "p50_us": asked.p50_us,
            "p99_us": asked.p99_us,
            "cpu_us_per_commit": broker.used.cpu_seconds / asked.acked_requests * 1e6,
            "generator_share": asked.cpu_share,
        }

    return run


def _rebalance(protocol: str) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        topic = bench.topic(PARTITIONS)
        address = bench.broker.address
        generators.await_coordinator(address, topic, groups=1)
        group = Group(address, f"{topic}-{protocol}", topic, partitions=PARTITIONS, protocol=protocol)
        with closing(group), bench.measure() as broker:
            group.join(MEMBERS)
            all_join_s = group.settle()
            group.leave()
            one_leaves_s = group.settle()
            group.join(1)
            one_joins_s = group.settle()
        return {
            "all_join_s": all_join_s,
            "one_leaves_s": one_leaves_s,
            "one_joins_s": one_joins_s,
            "cpu_s": broker.used.cpu_seconds,
        }

    return run


def _many(bench: Bench) -> Figures:
    """Memory of committed offsets; then the coordinator's death, and the death of everything."""
    broker, groups = bench.broker, 10 * bench.scale.many
    broker.create_topic("read", OFFSETS_A_GROUP)
    generators.await_coordinator(broker.address, "read", groups=1)
    time.sleep(1.0)
    before = proc.pss_bytes(broker.pids())
    asked = generators.one_record(
        "commit",
        broker.address,
        topic="read",
        seconds=WRITING_SECONDS_MAX,
        connections=8,
        records=OFFSETS_A_GROUP,
        groups=groups,
        requests=groups,
    )
    grown = proc.pss_bytes(broker.pids()) - before
    figures = {
        "offsets_s": asked.requests_s * OFFSETS_A_GROUP,
        "kb_per_group": grown / groups / 1e3,
        "bytes_per_offset": grown / groups / OFFSETS_A_GROUP,
    }
    for pid in broker.pids():
        if "coordinator" in proc.title_of(pid):
            killed_at_ns = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)
            figures["coordinator_back_s"] = _loaded_after(bench, killed_at_ns)
            _check_some(bench, groups)
    broker.kill()
    started_at_ns = time.monotonic_ns()
    broker.start()
    figures["all_back_s"] = _loaded_after(bench, started_at_ns)
    _check_some(bench, groups)
    return figures


def _loaded_after(bench: Bench, since_ns: int) -> float:
    loaded_ns = generators.await_coordinator(bench.broker.address, "read", groups=LOOKED_AT_GROUPS)
    return (loaded_ns - since_ns) / 1e9


def _check_some(bench: Bench, groups: int) -> None:
    some = range(0, groups, max(1, groups // CHECKED_GROUPS))
    offsets = [generators.committed_offset(partition) for partition in range(OFFSETS_A_GROUP)]
    generators.check_committed(bench.broker.address, "read", offsets, groups=some)


CASES = (
    Case(
        "commits_1",
        "offset commits of one partition, acknowledged, one member after its own answer",
        _commits(1),
        not_for=NOT_FOR_MOCK,
        rounds=1,
    ),
    Case(
        "commits_50",
        f"the same of {MEMBERS} members of one group, each of its own partition",
        _commits(MEMBERS),
        not_for=NOT_FOR_MOCK,
        rounds=1,
    ),
    Case(
        "rebalance_50",
        f"{MEMBERS} members join a classic group over {PARTITIONS} partitions at once; one leaves; one joins",
        _rebalance("classic"),
        not_for=NOT_FOR_MOCK,
        rounds=1,
    ),
    Case(
        "rebalance_50_consumer",
        "the same by the consumer protocol (KIP-848)",
        _rebalance("consumer"),
        not_for=NOT_FOR_MOCK,
        rounds=1,
        by_name=True,
    ),
    Case(
        "groups_10000",
        f"10,000 groups with {OFFSETS_A_GROUP} committed offsets each; then SIGKILL, until each is served again",
        _many,
        not_for=NOT_FOR_MOCK,
        rounds=1,
        own=True,
    ),
)
