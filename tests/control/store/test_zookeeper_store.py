"""What only a store behind a network can do wrong: answers that are late or lost, sessions that end elsewhere."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from appliance.clock import Clock, ManualClock, SystemClock
from appliance.control.store.errors import BadVersion, ChangeTooLarge, SessionExpired, StoreUnavailable
from appliance.control.store.left_sessions import DIRECTORY, HANDED_ON
from appliance.control.store.metadata_store import Create, EventKind, SetData, WatchEvent
from appliance.control.store.session_lease import SessionLease
from appliance.control.store.znode_tree import WRITERS
from appliance.control.store.zookeeper_store import ZooKeeperStore
from appliance.errors import StorageFault
from tests.control.store.conftest import wait_for_events
from tests.log.test_full_disk import files_at_most
from tests.support.cut_line import CutLine
from tests.support.zookeeper import ZooKeeper

WAIT_S = 30.0


def asked_once(
    server: ZooKeeper | CutLine,
    directory: Path,
    *,
    also: str = "",
    timeout_ms: int = 10_000,
    clock: Clock | None = None,
    handed_on: bool = False,
) -> ZooKeeperStore:
    hosts = f"127.0.0.1:{server.port}{also}/{directory.name}"
    return ZooKeeperStore(
        hosts, timeout_ms, data_dir=directory, clock=clock or SystemClock(), handed_on=handed_on
    )


def opened(
    server: ZooKeeper | CutLine,
    directory: Path,
    *,
    also: str = "",
    timeout_ms: int = 10_000,
    clock: Clock | None = None,
    handed_on: bool = False,
) -> ZooKeeperStore:
    """A session; a server that is not as quick as the store's patience is asked again, as the controller does."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return asked_once(
                server, directory, also=also, timeout_ms=timeout_ms, clock=clock, handed_on=handed_on
            )
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / str(uuid4())


@pytest.fixture
def line(zookeeper: ZooKeeper) -> Iterator[CutLine]:
    line = CutLine(zookeeper.port)
    yield line
    line.close()


def wait_until_answered(store: ZooKeeperStore) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            store.get("/")
        except StoreUnavailable:
            assert time.monotonic() < deadline, "the connection does not come back"
            time.sleep(0.05)
        else:
            return


def test_lease_ends_before_the_server_can_have_ended_the_session() -> None:
    clock = ManualClock(monotonic_ns=1)
    lease = SessionLease(clock, 1000)
    assert not lease.held()
    lease.confirm(clock.monotonic_ns())
    clock.advance(899)
    assert lease.held()
    lease.confirm(0)  # an older answer that comes later takes nothing away
    assert lease.held()
    clock.advance(1)
    assert not lease.held()


def test_ephemeral_node_of_a_killed_process_is_gone_as_soon_as_the_next_one_opens(
    zookeeper: ZooKeeper, directory: Path
) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from appliance.clock import SystemClock;"
        "from appliance.control.store.zookeeper_store import ZooKeeperStore;"
        "store = ZooKeeperStore(sys.argv[1], 60_000, data_dir=Path(sys.argv[2]), clock=SystemClock());"
        "store.create('/controller', ephemeral=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    connect = f"{zookeeper.address}/{directory.name}"
    died = subprocess.run([sys.executable, "-c", program, connect, str(directory)], timeout=60, check=False)
    assert died.returncode == -9
    store = opened(zookeeper, directory)
    assert store.exists("/controller") is None
    assert [path.name for path in (directory / DIRECTORY).iterdir()] == [str(store.session_id)]
    store.close()
    assert list((directory / DIRECTORY).iterdir()) == []


def handed_on(server: ZooKeeper, directory: Path) -> ZooKeeperStore:
    return opened(server, directory, timeout_ms=60_000, handed_on=True)


@pytest.fixture
def left_with_a_node(zookeeper: ZooKeeper, directory: Path) -> int:
    """The session that a killed process has handed on, to which `/0` belongs."""
    program = (
        "import os, signal, sys; from pathlib import Path; from appliance.clock import SystemClock;"
        "from appliance.control.store.zookeeper_store import ZooKeeperStore;"
        "store = ZooKeeperStore(sys.argv[1], 60_000, data_dir=Path(sys.argv[2]), clock=SystemClock(), handed_on=True);"
        "store.create('/0', ephemeral=True); print(store.session_id, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run(
        [sys.executable, "-c", program, f"{zookeeper.address}/{directory.name}", str(directory)],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert died.returncode == -9, died.stderr
    return int(died.stdout)


def test_session_that_is_handed_on_outlives_the_process_and_goes_on_counting(
    zookeeper: ZooKeeper, directory: Path, left_with_a_node: int
) -> None:
    other = opened(zookeeper, directory)
    assert other.exists("/0") is not None, "it was ended with those that were left"
    store = handed_on(zookeeper, directory)
    assert store.session_id == left_with_a_node
    assert store.get("/0").stat.ephemeral_owner == store.session_id
    store.set("/0", b"a")
    store.multi([SetData("/0", b"b"), Create("/1", ephemeral=True)])
    store.close()
    assert [other.exists(path) for path in ("/0", "/1")] == [None, None]
    other.close()
    assert list((directory / DIRECTORY).iterdir()) == []


def test_beginning_that_fails_leaves_the_session_that_is_handed_on_to_the_next(
    zookeeper: ZooKeeper, directory: Path, left_with_a_node: int
) -> None:
    operator = KazooClient(hosts=zookeeper.address)
    operator.start()
    writers = f"/{directory.name}/writers"
    try:
        # It cannot count its changes there.
        operator.set_acls(writers, [make_acl("world", "anyone", read=True, write=True, admin=True)])
        for _ in range(2):
            with pytest.raises(StorageFault):
                handed_on(zookeeper, directory)
            assert operator.get(f"/{directory.name}/0")[1].ephemeralOwner == left_with_a_node
        operator.set_acls(writers, OPEN_ACL_UNSAFE)
        store = handed_on(zookeeper, directory)
        assert store.session_id == left_with_a_node
        store.set("/0", b"a")
        store.close()
    finally:
        operator.stop()
        operator.close()


def test_full_disk_costs_no_session_that_is_handed_on(
    zookeeper: ZooKeeper, directory: Path, left_with_a_node: int
) -> None:
    other = opened(zookeeper, directory)
    with files_at_most(0):
        store = handed_on(zookeeper, directory)
    assert store.session_id == left_with_a_node
    store.close()
    with files_at_most(0), pytest.raises(StorageFault):
        handed_on(zookeeper, directory)
    until("one that cannot be written down does not stay", lambda: len(other.children(WRITERS)) == 1)
    again = handed_on(zookeeper, directory)
    again.close()
    other.close()


@pytest.mark.parametrize("left", ["", "7 " + "00" * 16, "7 zz", "what is this"])
def test_session_that_cannot_be_gone_on_with_is_followed_by_another_one(
    zookeeper: ZooKeeper, directory: Path, left: str
) -> None:
    (directory / DIRECTORY).mkdir(parents=True)
    (directory / DIRECTORY / HANDED_ON).write_text(left)
    store = handed_on(zookeeper, directory)
    assert store.session_id not in (0, 7)
    store.create("/0", ephemeral=True)
    assert store.get("/0").stat.ephemeral_owner == store.session_id
    store.close()


def test_session_that_is_handed_on_is_not_taken_from_a_living_process(
    zookeeper: ZooKeeper, directory: Path
) -> None:
    living = handed_on(zookeeper, directory)
    with pytest.raises(StorageFault):
        handed_on(zookeeper, directory)
    living.create("/0", ephemeral=True)
    living.close()
    again = handed_on(zookeeper, directory)
    assert again.session_id != living.session_id, "it was ended"
    again.close()


def test_session_of_a_living_process_is_left_alone(zookeeper: ZooKeeper, directory: Path) -> None:
    living = opened(zookeeper, directory)
    living.create("/controller", ephemeral=True)
    other = opened(zookeeper, directory)
    assert other.exists("/controller") is not None
    living.get("/controller")
    living.close()
    other.close()


def test_session_is_over_by_our_clock_when_the_server_falls_silent(
    own_zookeeper: ZooKeeper, directory: Path
) -> None:
    clock = ManualClock(monotonic_ns=1)
    store = opened(own_zookeeper, directory, timeout_ms=4000, clock=clock)
    own_zookeeper.pause()
    clock.advance(3600)  # in 400 ms more the server may expire it
    assert wait_for_events(store, timeout_ms=30_000)[-1:] == [WatchEvent(EventKind.SESSION_EXPIRED, "/")]
    with pytest.raises(SessionExpired):
        store.create("/too late")
    own_zookeeper.resume()
    with pytest.raises(SessionExpired):
        store.events()
    store.close()
    again = opened(own_zookeeper, directory)
    assert again.exists("/too late") is None
    again.close()


@pytest.mark.slow
def test_session_outlives_a_restart_of_the_server(own_zookeeper: ZooKeeper, directory: Path) -> None:
    store = opened(own_zookeeper, directory, timeout_ms=60_000)
    store.create("/mine", b"0", ephemeral=True)
    store.get("/mine", watch=True)
    own_zookeeper.kill()
    # What was watched may have changed by now, nobody would have told.
    assert wait_for_events(store, timeout_ms=30_000) == [WatchEvent(EventKind.CHANGED, "/mine")]
    with pytest.raises(StoreUnavailable):
        store.set("/mine", b"lost")
    own_zookeeper.start()
    wait_until_answered(store)
    assert store.get("/mine").data == b"0"
    assert store.set("/mine", b"1", version=0) == 1
    store.close()


@pytest.mark.slow
def test_server_that_takes_a_connection_while_it_starts_and_never_answers_it_does_not_cost_the_session(
    own_zookeeper: ZooKeeper, directory: Path
) -> None:
    store = opened(own_zookeeper, directory, timeout_ms=60_000)
    own_zookeeper.kill()
    with socket.create_server(("127.0.0.1", own_zookeeper.port)) as mute:
        mute.settimeout(WAIT_S)
        never_answered, _ = mute.accept()
    own_zookeeper.start()
    wait_until_answered(store)
    never_answered.close()
    store.close()


@pytest.mark.slow
def test_session_is_opened_though_the_server_that_is_asked_first_never_answers(
    zookeeper: ZooKeeper, directory: Path
) -> None:
    failures = 0
    with socket.create_server(("127.0.0.1", 0)) as mute:
        # Which of the two comes first is chance. Once a machine that stands still may be the reason.
        for _ in range(8):
            try:
                also = f",127.0.0.1:{mute.getsockname()[1]}"
                asked_once(zookeeper, directory, also=also, timeout_ms=60_000).close()
            except StoreUnavailable:
                failures += 1
    assert failures <= 1


@pytest.mark.slow
def test_server_that_takes_no_connection_does_not_cost_the_session(
    own_zookeeper: ZooKeeper, directory: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as dead, contextlib.ExitStack() as held:
        # A queue that is full answers no further SYN, as a host without power.
        port = dead.getsockname()[1]
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        store = opened(own_zookeeper, directory, also=f",127.0.0.1:{port}", timeout_ms=60_000)
        us = psutil.Process()
        queued = {each.fd for each in us.net_connections() if each.raddr and each.raddr.port == port}

        def waits_for_the_dead() -> bool:
            return any(
                each.status == psutil.CONN_SYN_SENT and each.raddr.port == port and each.fd not in queued
                for each in us.net_connections()
            )

        own_zookeeper.kill()
        until("it does not ask the other one", waits_for_the_dead)
        own_zookeeper.start()
        wait_until_answered(store)
        store.close()


def until(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_change_whose_answer_was_lost_is_found_to_have_taken_place(line: CutLine, directory: Path) -> None:
    store = opened(line, directory, timeout_ms=60_000)
    store.create("/a", b"0")
    line.cut_after_answer()
    store.multi([SetData("/a", b"1", version=0), Create("/b")])
    assert (store.get("/a").data, store.get("/a").version) == (b"1", 1)
    with pytest.raises(BadVersion):
        store.set("/a", b"2", version=0)
    line.cut_after_answer()
    assert store.set("/a", b"2", version=1) == 2
    store.close()


def test_change_that_never_arrived_changes_nothing_and_may_be_tried_again(
    line: CutLine, directory: Path
) -> None:
    store = opened(line, directory, timeout_ms=60_000)
    store.create("/a", b"0")
    line.cut_before_request()
    with pytest.raises(StoreUnavailable):
        store.set("/a", b"1")
    assert store.get("/a").data == b"0"
    assert store.set("/a", b"1", version=0) == 1
    store.close()


def test_session_ends_when_a_change_took_place_whose_owner_was_told_otherwise(
    line: CutLine, directory: Path
) -> None:
    store = opened(line, directory, timeout_ms=60_000)
    line.cut_after_answer(then_refuse=True)
    with pytest.raises(StoreUnavailable):
        store.create("/a")
    line.mend()
    # Nobody asks for anything: the bell that the connection is back is enough.
    events: list[WatchEvent] = []
    while not events:
        events = wait_for_events(store, timeout_ms=30_000)
    assert events == [WatchEvent(EventKind.SESSION_EXPIRED, "/")]
    with pytest.raises(SessionExpired, match="did take place"):
        store.create("/b")
    store.close()
    again = opened(line, directory, timeout_ms=60_000)
    assert again.exists("/a") is not None
    again.close()


@pytest.mark.slow
def test_answer_that_was_lost_twice_is_still_told_rightly(line: CutLine, directory: Path) -> None:
    store = opened(line, directory, timeout_ms=60_000)
    line.cut_before_request(then_refuse=True)
    with pytest.raises(StoreUnavailable):
        store.create("/a")
    line.mend()
    deadline = time.monotonic() + WAIT_S
    while not store.connected:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # The question what became of it loses its answer as well; it changed nothing but the count.
    line.cut_after_answer()
    with pytest.raises(StoreUnavailable):
        store.create("/b")
    wait_until_answered(store)
    store.create("/b")
    assert store.exists("/a") is None
    store.close()


def test_granted_timeout_governs_the_lease_whatever_was_asked_for(
    zookeeper: ZooKeeper, directory: Path
) -> None:
    store = opened(zookeeper, directory, timeout_ms=600_000)
    assert 0 < store.statistics()["lease_ms"] <= 60_000
    store.close()


def test_change_that_is_too_large_is_refused_before_it_is_sent(zookeeper: ZooKeeper, directory: Path) -> None:
    store = opened(zookeeper, directory)
    with pytest.raises(ChangeTooLarge):
        store.multi([Create(f"/{number}", bytes(400_000)) for number in range(3)])
    assert store.exists("/0") is None
    store.close()


@pytest.mark.slow
def test_server_that_is_not_there_or_silent_is_told_of_in_time(
    own_zookeeper: ZooKeeper, directory: Path
) -> None:
    own_zookeeper.pause()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        asked_once(own_zookeeper, directory)
    own_zookeeper.kill()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        asked_once(own_zookeeper, directory)
    assert time.monotonic() - began < WAIT_S
