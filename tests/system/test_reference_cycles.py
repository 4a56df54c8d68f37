"""What requests, connections and groups leave behind is freed at once: nothing waits for the cycle collector.

The appliance runs with the collector off. On a signal each process counts the objects that only the collector would
have freed, by type. It writes them into a file that the test has made in the instance's shared memory, because some
processes may write nowhere else, and create nothing. The first count of each process clears what its start has left.
"""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.raw_fetch import FETCH, PARTITION, REQUEST, VERSION
from tests.support.wire import ConnectionEnded, WireSocket, nullable_string
from tests.system.offsets import SETTINGS, commit, commit_request
from tests.system.raw import ask, create_topic, produce, wait_until

HOOK = """
import gc, json, os, signal
gc.disable()
def count(number, frame):
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    counts = {}
    for one in gc.garbage:
        kind = one if type(one).__name__ == "function" else type(one)
        name = f"{kind.__module__}.{kind.__qualname__}"
        counts[name] = counts.get(name, 0) + 1
    gc.garbage.clear()
    gc.collect()  # frees what was only set aside
    with open(os.environ["RUNTIME_DIRECTORY_FILE"]) as file:
        directory = file.read().strip()
    with open(os.path.join(directory, f"cycles-{os.getpid()}"), "r+") as file:
        file.write(json.dumps(counts) + "\\n")
signal.signal(signal.SIGUSR2, count)
"""
TOPIC = "watched"
PARTITIONS = 20
ROUNDS = 10
LEFT_MAX = ROUNDS - 1
"""Objects of a type that one process may leave: fewer than one a round."""


@contextmanager
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, slots: int) -> Iterator[Appliance]:
    """An appliance with the collector off. One network process: it compiles the codecs of all requests at once."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", str(hook))
    monkeypatch.setenv("RUNTIME_DIRECTORY_FILE", str(tmp_path / "data" / "runtime-directory"))
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": 0, "network.processes": 1}
    appliance = Appliance(tmp_path / "data", slots=slots, settings=settings)
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC, partitions=PARTITIONS) == 0
        yield appliance
    finally:
        appliance.stop()


def is_whole(path: Path) -> bool:
    return path.read_text().endswith("\n")


def cycles(broker: Appliance) -> dict[str, dict[str, int]]:
    """By role, what only the collector has freed since the last call: objects by type."""
    found = {}
    directory = Path((broker.data_dir / "runtime-directory").read_text().strip())
    for row in broker.processes():
        path = directory / f"cycles-{row.pid}"
        path.touch()
        try:
            os.kill(row.pid, signal.SIGUSR2)
            wait_until(partial(is_whole, path), f"{row.role} has counted")
            counts: dict[str, int] = json.loads(path.read_text())
        finally:
            path.unlink()
        found[row.role] = counts
    return found


def wait_for_records(connection: WireSocket, *, max_wait_ms: int) -> None:
    """Sends a Fetch of all partitions from offset 1000, where there is nothing."""
    wanted = b"".join(PARTITION.pack(partition, 0, 1 << 20) for partition in range(1, PARTITIONS))
    topics = struct.pack(">i", 1) + nullable_string(TOPIC) + struct.pack(">i", PARTITIONS - 1) + wanted
    connection.send_request(
        FETCH, VERSION, REQUEST.pack(-1, max_wait_ms, 1, 1 << 26, 0) + topics, flexible=False
    )


def fetch_round(port: int) -> None:
    """Fetches that expire, that are satisfied, and whose connection closes while they wait."""
    with WireSocket(port) as expires:
        wait_for_records(expires, max_wait_ms=20)
        expires.read_frame()
    with WireSocket(port) as leaves:
        wait_for_records(leaves, max_wait_ms=60_000)
        with WireSocket(port) as producer:
            assert produce(producer, TOPIC, encode_batch([Record(b"one")]), partition=0).error == 0
    with WireSocket(port) as reader:
        wanted = (
            struct.pack(">i", 1) + nullable_string(TOPIC) + struct.pack(">i", 1) + PARTITION.pack(0, 0, 1000)
        )
        reader.send_request(FETCH, VERSION, REQUEST.pack(-1, 100, 1, 1 << 20, 0) + wanted, flexible=False)
        assert b"one" in reader.read_frame()


def satisfied_round(port: int, *, number: int) -> None:
    topic = f"{TOPIC}-{number}"
    assert create_topic(port, topic) == 0
    with WireSocket(port) as reader, WireSocket(port) as producer:
        wanted = (
            struct.pack(">i", 1) + nullable_string(topic) + struct.pack(">i", 1) + PARTITION.pack(0, 0, 1000)
        )
        reader.send_request(FETCH, VERSION, REQUEST.pack(-1, 60_000, 1, 1 << 20, 0) + wanted, flexible=False)
        assert produce(producer, topic, encode_batch([Record(b"two")])).error == 0
        assert b"two" in reader.read_frame()


def group_round(port: int, *, number: int) -> None:
    """A classic group lives and dies, with a member that never joins."""
    group = f"group-{number}"
    protocols = (JoinGroupProtocol("range", b""),)

    def join(member_id: str) -> Any:
        request = JoinGroupRequest(group, 6000, member_id, "consumer", protocols, rebalance_timeout_ms=300)
        return ask(connection, ApiKey.JOIN_GROUP, request)

    with WireSocket(port) as connection:
        assert commit(connection, commit_request(group, TOPIC, 1)) == [0]
        join("")
        joined = join(join("").member_id)
        assert joined.error_code == 0
        member, generation = joined.member_id, joined.generation_id
        assignments = (SyncGroupAssignment(member, b"a"),)
        synced = ask(connection, ApiKey.SYNC_GROUP, SyncGroupRequest(group, generation, member, assignments))
        assert synced.error_code == 0
        beat = ask(connection, ApiKey.HEARTBEAT, HeartbeatRequest(group, generation, member))
        assert beat.error_code == 0
        for api, request in (
            (ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=(OffsetFetchGroup(group),))),
            (ApiKey.LIST_GROUPS, ListGroupsRequest()),
            (ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest((group,))),
            (ApiKey.LEAVE_GROUP, LeaveGroupRequest(group, members=(MemberIdentity(member),))),
            (ApiKey.DELETE_GROUPS, DeleteGroupsRequest((group,))),
        ):
            ask(connection, api, request)


def consumer_group_round(port: int, *, number: int) -> None:
    """A group of KIP-848 with one member, that leaves."""
    group = f"consumers-{number}"
    with WireSocket(port) as connection:
        for epoch in (0, -1):
            beat = ConsumerGroupHeartbeatRequest(
                group,
                "m",
                epoch,
                rebalance_timeout_ms=10_000 if not epoch else -1,
                subscribed_topic_names=(TOPIC,) if not epoch else None,
                topic_partitions=() if not epoch else None,
            )
            told = ask(connection, ApiKey.CONSUMER_GROUP_HEARTBEAT, beat)
            assert told.error_code == 0, told
        ask(connection, ApiKey.DELETE_GROUPS, DeleteGroupsRequest((group,)))


def odd_round(port: int) -> None:
    with WireSocket(port) as hostile:
        hostile.send_frame(b"\0\3\0\x0c\0\0\0\1\xff\xff\0\xff\xff\xff\xff\x7f")
        with pytest.raises(ConnectionEnded):
            hostile.read_frame()
    with WireSocket(port) as asker:
        ask(
            asker,
            ApiKey.DESCRIBE_CONFIGS,
            DescribeConfigsRequest((DescribedResource(2, TOPIC),)),
        )


def left(broker: Appliance, load: Callable[[], None]) -> dict[str, dict[str, int]]:
    """By role, what two runs of `load` leave to the collector; what the first one leaves once is not counted."""
    load()
    cycles(broker)
    load()
    many = {
        role: {name: count for name, count in counts.items() if count > LEFT_MAX}
        for role, counts in cycles(broker).items()
    }
    return {role: counts for role, counts in many.items() if counts}


def test_requests_connections_and_groups_leave_nothing_to_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count()

    def load() -> None:
        for _ in range(ROUNDS):
            fetch_round(broker.port)
            satisfied_round(broker.port, number=next(numbers))
            group_round(broker.port, number=next(numbers))
            consumer_group_round(broker.port, number=next(numbers))
            odd_round(broker.port)

    with running(tmp_path, monkeypatch, slots=1) as broker:
        with WireSocket(broker.port) as connection:
            commit(connection, commit_request("first", TOPIC, 1))  # there is a coordinator from now on
        assert left(broker, load) == {}


def test_replication_leaves_nothing_to_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encode_batch([Record(b"to three slots")])

    def load() -> None:
        stored = 0
        for slot in range(3):
            with WireSocket(broker.port + slot) as producer:
                for partition in (*range(PARTITIONS), *range(PARTITIONS)):
                    stored += produce(producer, TOPIC, batch, partition=partition).error == 0
        assert stored >= ROUNDS

    with running(tmp_path, monkeypatch, slots=3) as broker:
        assert left(broker, load) == {}
