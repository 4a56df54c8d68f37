"""A ZooKeeper of three servers: its leader dies, a server falls silent, one is cut off from the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from appliance.clock import SystemClock
from appliance.control.controller.takeover import win
from appliance.control.store.errors import BadVersion, SessionExpired, StoreUnavailable
from appliance.control.store.metadata_store import Create, SetData
from appliance.control.store.znode_tree import CONTROLLER, CONTROLLER_EPOCH
from appliance.control.store.zookeeper_store import ZooKeeperStore
from appliance.errors import StorageFault
from tests.support.zookeeper import Ensemble

WAIT_S = 90.0
LONG_MS = 60_000
"""A session that outlives any election, on a machine that stands still for seconds."""
SHORT_MS = 4_000


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    ensemble = Ensemble(tmp_path_factory.mktemp("ensemble"))
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.kill()


@pytest.fixture
def ensemble(started: Ensemble) -> Ensemble:
    """Whole, whatever the test before has done to it."""
    started.start()
    return started


@pytest.fixture
def divided(tmp_path: Path) -> Iterator[Ensemble]:
    """One of its servers can be cut off from the others."""
    ensemble = Ensemble(tmp_path / "ensemble", can_be_cut=True)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.kill()


def opened(addresses: str, chroot: str, data_dir: Path, *, timeout_ms: int = LONG_MS) -> ZooKeeperStore:
    """A session; one of the servers that are asked may be silent, and another one is asked then."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return ZooKeeperStore(f"{addresses}/{chroot}", timeout_ms, data_dir=data_dir, clock=SystemClock())
        except StoreUnavailable:
            assert time.monotonic() < deadline, "no session"


@pytest.fixture
def chroot() -> str:
    return f"dc1/{uuid4()}"


def until(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def count_on(store: ZooKeeperStore, path: str, told: list[int]) -> None:
    """Sets the node to the next number, once; `told` gets what was acknowledged."""
    try:
        node = store.get(path)
        number = int(node.data) + 1
        store.set(path, b"%d" % number, version=node.version)
        told.append(number)
    except StoreUnavailable:
        time.sleep(0.01)


def survive_leaders(ensemble: Ensemble, store: ZooKeeperStore, *, kills: int) -> None:
    """Kills whoever leads while a number is counted up: what was acknowledged is there, and the session is the same."""
    store.multi([Create("/mine", b"", ephemeral=True), Create("/number", b"0")])
    session_id, told = store.session_id, list[int]()
    for _ in range(kills):
        ensemble.start()
        ensemble.leader().kill()
        wanted = len(told) + 20

        def goes_on(wanted: int = wanted) -> bool:
            count_on(store, "/number", told)
            return len(told) >= wanted

        until("nothing is written any more", goes_on)
    assert told == sorted(set(told))
    assert int(store.get("/number").data) == told[-1] == store.get("/number").version
    mine = store.exists("/mine")
    assert mine is not None
    assert mine.ephemeral_owner == session_id


def test_session_and_every_acknowledged_change_outlive_the_leader_of_the_ensemble(
    ensemble: Ensemble, chroot: str, tmp_path: Path
) -> None:
    store = opened(ensemble.addresses, chroot, tmp_path)
    survive_leaders(ensemble, store, kills=1)
    store.close()


@pytest.mark.slow
def test_session_and_every_acknowledged_change_outlive_one_leader_after_another(
    ensemble: Ensemble, chroot: str, tmp_path: Path
) -> None:
    store = opened(ensemble.addresses, chroot, tmp_path)
    survive_leaders(ensemble, store, kills=4)
    store.close()


@pytest.mark.slow
def test_changes_go_on_when_the_disk_of_the_ensembles_leader_is_full(
    ensemble: Ensemble, chroot: str, tmp_path: Path
) -> None:
    store = opened(ensemble.addresses, chroot, tmp_path)
    store_number(store)
    full, told = ensemble.leader(), list[int]()
    full.fill_disk()

    def goes_on() -> bool:
        count_on(store, "/number", told)
        return len(told) >= 20

    until("nothing is written any more", goes_on)
    until("it leads without a disk", lambda: full.mode() != "leader")
    assert told == sorted(set(told))
    # With room again it has what it had missed.
    full.kill()
    ensemble.start()
    assert int(store.get("/number").data) == told[-1] == store.get("/number").version
    store.close()


@pytest.mark.slow
def test_session_moves_from_a_server_that_falls_silent_before_its_lease_is_over(
    ensemble: Ensemble, chroot: str, tmp_path: Path
) -> None:
    store = opened(ensemble.addresses, chroot, tmp_path)
    store.create("/mine", b"", ephemeral=True)
    silent = ensemble.server_of(store.session_id)
    assert silent is not None
    silent.pause()
    try:
        others = ensemble.without(silent)
        until(
            "the session stays where nobody answers",
            lambda: any(each.has_connection_of(store.session_id) for each in others),
        )
        told: list[int] = []
        store_number(store)

        def is_written() -> bool:
            count_on(store, "/number", told)
            return bool(told)

        until("nothing is written", is_written)
        assert store.exists("/mine") is not None
    finally:
        silent.resume()
    store.close()


def store_number(store: ZooKeeperStore) -> None:
    """Makes `/number`, whatever becomes of an answer."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if store.exists("/number") is None:
                store.create("/number", b"0")
            return
        except StoreUnavailable:
            assert time.monotonic() < deadline


@pytest.mark.slow
def test_controller_that_is_cut_off_with_a_minority_changes_nothing_once_another_one_leads(
    divided: Ensemble, chroot: str, tmp_path: Path
) -> None:
    clock = SystemClock()
    alone = divided.servers[0]
    cut_off = opened(alone.address, chroot, tmp_path / "cut off", timeout_ms=SHORT_MS)
    first = win(cut_off, clock)
    assert first is not None
    others = ",".join(server.address for server in divided.without(alone))
    divided.cut_off(alone)
    try:
        with pytest.raises((StorageFault, SessionExpired)):
            cut_off.multi([first.check, Create("/too late")])
        standby = opened(others, chroot, tmp_path / "standby")
        until("the session of the one that is cut off does not end", lambda: is_vacant(standby))
        second = win(standby, clock)
        assert second is not None
        assert second.epoch > first.epoch
        standby.multi([second.check, Create("/of the second")])
    finally:
        divided.mend()
    divided.await_whole()
    with pytest.raises((StorageFault, SessionExpired, BadVersion)):
        cut_off.multi([first.check, SetData("/of the second", b"by the first")])
    assert standby.get("/of the second").data == b""
    late, won = standby.exists("/too late"), standby.exists(CONTROLLER)
    assert won is not None
    assert late is None or late.created_zxid < won.created_zxid
    assert int(standby.get(CONTROLLER_EPOCH).data) == second.epoch
    cut_off.close()
    standby.close()


def is_vacant(store: ZooKeeperStore) -> bool:
    try:
        return store.exists(CONTROLLER) is None
    except StoreUnavailable:
        return False


@pytest.mark.slow
def test_without_a_majority_nothing_is_written_and_with_one_again_it_is(
    ensemble: Ensemble, chroot: str, tmp_path: Path
) -> None:
    store = opened(ensemble.addresses, chroot, tmp_path)
    store.create("/a", b"0")
    paused = ensemble.servers[:2]
    for server in paused:
        server.pause()
    try:
        with pytest.raises((StorageFault, SessionExpired)):
            store.set("/a", b"1", version=0)
    finally:
        for server in paused:
            server.resume()
    ensemble.await_whole()
    again = opened(ensemble.addresses, chroot, tmp_path)
    until("the store is not used again", lambda: is_set(again))
    again.close()
    store.close()


def is_set(store: ZooKeeperStore) -> bool:
    try:
        store.set("/a", b"2")
    except (StoreUnavailable, BadVersion):
        return False
    return store.get("/a").data == b"2"
