"""Metadata in ZooKeeper in a backup: read as one moment, and restored into an empty chroot only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from appliance.clock import SystemClock
from appliance.control.backup import zookeeper_client
from appliance.control.backup.metadata_sources import MetadataMoved, ZooKeeperMetadata
from appliance.control.backup.zookeeper_tree import decode_tree, encode_tree, refuse_used, write_tree
from appliance.control.controller.takeover import cluster_id, plant
from appliance.control.store.metadata_store import Create, SetData
from appliance.control.store.znode_tree import CLUSTER_ID, CONTROLLER, RESTORING, WRITERS
from appliance.control.store.zookeeper_store import ZooKeeperStore
from appliance.errors import CorruptFile, HostFault, OperatorFault
from tests.support.zookeeper import ZooKeeper

PAIR: Final = ("/brokers/left", "/brokers/right")
ID: Final = "20260101T000000.000Z"
_chroots = count()


@pytest.fixture
def connect(zookeeper: ZooKeeper) -> str:
    """A chroot of its own that does not exist yet."""
    return f"{zookeeper.address}/backed-up/{next(_chroots)}"


def opened(connect: str, data_dir: Path) -> ZooKeeperStore:
    return ZooKeeperStore(connect, 6000, data_dir=data_dir, clock=SystemClock())


@pytest.fixture
def source(connect: str, tmp_path: Path) -> Iterator[ZooKeeperStore]:
    """The store of an appliance that runs: with nodes of its session, and 300 others."""
    store = opened(connect, tmp_path / "source")
    plant(store)
    store.create(CONTROLLER, b"me", ephemeral=True)
    store.multi([Create(f"/brokers/topics/t{number}", b"%d" % number) for number in range(300)])
    store.multi([Create(path, b"0") for path in PAIR])
    yield store
    store.close()


def read(connect: str, cluster: str = "") -> list[tuple[str, bytes]]:
    metadata = ZooKeeperMetadata(connect)
    try:
        return decode_tree(metadata.content(cluster))
    finally:
        metadata.close()


def write(connect: str, nodes: list[tuple[str, bytes]], data_dir: Path) -> None:
    write_tree(connect, nodes, data_dir=data_dir, clock=SystemClock(), backup_id=ID)


def test_tree_comes_back_in_another_chroot_without_nodes_of_sessions(
    source: ZooKeeperStore, connect: str, tmp_path: Path
) -> None:
    nodes = read(connect, cluster_id(source))
    assert len(nodes) > 300
    assert not {path for path, _ in nodes if path.startswith((CONTROLLER + "/", WRITERS))}
    assert CONTROLLER not in dict(nodes)
    other = f"{connect}-restored/below"
    refuse_used(other)
    write(other, nodes, tmp_path / "restored")
    assert read(other) == nodes
    store = opened(other, tmp_path / "restored")
    assert cluster_id(store) == cluster_id(source)
    plant(store)
    store.close()


def test_reading_under_changes_shows_one_moment(source: ZooKeeperStore, connect: str) -> None:
    ended, changes = threading.Event(), 0

    def change() -> None:
        nonlocal changes
        while not ended.wait(0.05 * (changes % 12)):
            changes += 1
            source.multi([SetData(path, b"%d" % changes) for path in PAIR])

    changing = threading.Thread(target=change)
    changing.start()
    try:
        seen: set[bytes] = set()
        while len(seen) < 3:
            try:
                nodes = dict(read(connect))
            except MetadataMoved:
                continue  # the backup tries again for half a minute
            assert nodes[PAIR[0]] == nodes[PAIR[1]], "both are of one change"
            seen.add(nodes[PAIR[0]])
    finally:
        ended.set()
        changing.join()


def test_restore_is_refused_where_something_is(source: ZooKeeperStore, connect: str, tmp_path: Path) -> None:
    nodes = read(connect)
    with pytest.raises(OperatorFault, match="is not empty"):
        refuse_used(connect)
    with pytest.raises(OperatorFault, match="is not empty"):
        write(connect, [(CLUSTER_ID, b"x")], tmp_path / "restored")
    assert read(connect) == nodes


def test_interrupted_restore_is_refused_by_a_controller_and_replaced_by_the_next_restore(
    source: ZooKeeperStore, connect: str, tmp_path: Path
) -> None:
    nodes = read(connect)
    other = f"{connect}-restored"
    part = opened(other, tmp_path / "part")
    part.multi([Create(RESTORING, ID.encode()), Create("/brokers", b""), Create("/brokers/left", b"wrong")])
    with pytest.raises(OperatorFault, match="somebody writes"):
        refuse_used(other)
    with pytest.raises(OperatorFault, match="somebody writes"):
        write(other, nodes, tmp_path / "beside")
    part.close()
    starting = opened(other, tmp_path / "starting")
    with pytest.raises(OperatorFault, match="restore"):
        plant(starting)
    starting.close()
    refuse_used(other)
    write(other, nodes, tmp_path / "restored")
    assert read(other) == nodes


def test_other_clusters_missing_chroots_and_silent_servers_are_named(
    source: ZooKeeperStore, connect: str
) -> None:
    with pytest.raises(OperatorFault, match="of cluster"):
        read(connect, "another")
    with pytest.raises(OperatorFault, match="nothing in ZooKeeper"):
        read(f"{connect}-nowhere")


def lost_after_connecting(server: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client connects, and then its server dies."""
    connected = zookeeper_client.reading_client

    def reading_client(hosts: str) -> Any:
        client = connected(hosts)
        server.kill()
        while client.connected:
            time.sleep(0.01)
        return client

    monkeypatch.setattr(zookeeper_client, "reading_client", reading_client)
    monkeypatch.setattr(zookeeper_client, "ANSWER_TIMEOUT_S", 0.5)


def test_server_that_dies_after_the_client_has_connected_is_named(
    own_zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_after_connecting(own_zookeeper, monkeypatch)
    began = time.monotonic()
    with pytest.raises(HostFault, match=f"ZooKeeper at {own_zookeeper.address}"):
        refuse_used(f"{own_zookeeper.address}/x")
    own_zookeeper.start()
    with pytest.raises(HostFault, match=f"ZooKeeper at {own_zookeeper.address}"):
        read(f"{own_zookeeper.address}/x")
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_restore_whose_session_ends_in_the_middle_writes_no_more_and_is_replaced_by_the_next(
    own_zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    connect = f"{own_zookeeper.address}/restored"
    nodes = [("/cluster", b""), (CLUSTER_ID, msgspec.json.encode({"version": "1", "id": "c"}))]
    nodes += [(f"/node-{number}", bytes(2000)) for number in range(4000)]
    faults: list[BaseException] = []

    def restore() -> None:
        try:
            write(connect, nodes, tmp_path / "part")
        except BaseException as fault:
            faults.append(fault)

    writing = threading.Thread(target=restore)
    writing.start()
    looking = zookeeper_client.reading_client(own_zookeeper.address)
    while looking.exists(f"/restored/node-{100}") is None:
        assert writing.is_alive()
        time.sleep(0.005)
    own_zookeeper.pause()
    writing.join(60)
    assert not writing.is_alive()
    own_zookeeper.resume()
    (fault,) = faults
    assert isinstance(fault, HostFault), fault
    deadline = time.monotonic() + 60
    while looking.retry(looking.get_children, f"/restored{WRITERS}"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    left = len(looking.get_children("/restored"))
    assert looking.exists(f"/restored{RESTORING}") is not None
    assert looking.exists(f"/restored{CLUSTER_ID}") is None
    assert 100 < left < 4000
    zookeeper_client.end_client(looking)
    refuse_used(connect)
    write(connect, nodes, tmp_path / "restored")
    assert read(connect) == sorted(nodes, key=lambda node: (node[0].count("/"), node[0]))


@pytest.mark.slow
def test_server_that_is_not_there_is_named() -> None:
    with pytest.raises(HostFault, match="does not answer"):
        refuse_used("127.0.0.1:1/x")


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [("/cluster", b"")],
        [("/cluster/id", b"x")],
        [("/cluster", b""), ("/cluster/id", b"x"), ("/cluster", b"")],
        [("/cluster", b""), ("/cluster/id", b"x"), ("/a/../b", b"")],
        [("/cluster", b""), ("/cluster/id", b"x"), (WRITERS, b"")],
        [("/cluster", b""), ("/cluster/id", b"x"), (RESTORING, b"")],
    ],
)
def test_tree_that_is_none_is_refused(nodes: list[tuple[str, bytes]]) -> None:
    with pytest.raises(CorruptFile):
        decode_tree(encode_tree(nodes))


def test_content_that_is_no_json_is_refused() -> None:
    for content in (b"", b"{}", msgspec.json.encode([["/cluster", 5]])):
        with pytest.raises(CorruptFile):
            decode_tree(content)
