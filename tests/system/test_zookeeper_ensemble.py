"""Three slots on three ZooKeepers, under load: each acknowledged record is read once and in order, and one controller
commands. Every send, acknowledgement and read is written down and judged as the checker does it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import ZnodeStat

from appliance.clock import SystemClock
from appliance.control.controller.takeover import win
from appliance.control.store.errors import StoreUnavailable
from appliance.control.store.left_sessions import DIRECTORY
from appliance.control.store.zookeeper_store import ZooKeeperStore
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.checker.anomalies import find
from tests.checker.campaign import compare_replicas
from tests.checker.history import History
from tests.checker.workload import Workload
from tests.support.broker import Appliance
from tests.support.store import on_zookeeper
from tests.support.wire import WireSocket
from tests.support.zookeeper import Ensemble
from tests.system.acked_load import bootstrap, create, leaders
from tests.system.raw import create_topic, produce, suspend, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLOTS: Final = 3
PARTITIONS: Final = 6
TOPIC: Final = "kept"
ASKED: Final = "asked"
WAIT_S: Final = 120.0
LONG_MS: Final = 30_000
"""A session that outlives an election, and a server that is cut off."""
SHORT_MS: Final = 6_000
OUTAGE_S: Final = 30.0
MORE: Final = 50
RETRIABLE: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Watched:
    """An appliance on an ensemble.

    Args:
        session_timeout_ms: of its controller.
    """

    def __init__(self, ensemble: Ensemble, data_dir: Path, *, session_timeout_ms: int) -> None:
        options = on_zookeeper(ensemble.addresses, data_dir)
        self.connect = str(options["zookeeper.connect"])
        self.broker = Appliance(
            data_dir,
            slots=SLOTS,
            settings={
                **options,
                "zookeeper.session.timeout.ms": session_timeout_ms,
                "replica.lag.time.max.ms": 3000,
            },
        )

    @contextmanager
    def under_load(self) -> Iterator[Workload]:
        """Producers and readers of TOPIC; after it, what they saw is judged."""
        create(self.broker, TOPIC, PARTITIONS, replicas=SLOTS, min_insync_replicas="2")
        history = History.empty(partitions=PARTITIONS, producers=2, readers=2)
        load = Workload(bootstrap(self.broker), TOPIC, history, records_per_s=300)
        load.start()
        try:
            goes_on(load)
            yield load
            goes_on(load)
        finally:
            load.stop_producing()
            load.stop_reading(load.read_everything())
        anomalies = [*load.failures, *find(history), *compare_replicas(self.broker, TOPIC)]
        assert not anomalies, "\n".join(map(str, anomalies[:40]))

    def node(self, path: str) -> tuple[bytes, ZnodeStat]:
        """A node as any client reads it; waits for one that is not there."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                with self.client() as client:
                    found: tuple[bytes, ZnodeStat] = client.get(path)
                    return found
            except (KazooException, KazooTimeoutError):
                assert time.monotonic() < deadline, f"no {path}"

    @contextmanager
    def client(self, session: tuple[int, bytes] | None = None) -> Iterator[KazooClient]:
        client = KazooClient(hosts=self.connect, client_id=session)
        try:
            client.start(timeout=20)
            yield client
        finally:
            with suppress(Exception):  # a bare one, where a server does not answer
                client.stop()
                client.close()

    def epoch(self) -> int:
        return int(self.node("/controller_epoch")[0])

    def controller_session(self) -> int:
        return int(self.node("/controller")[1].ephemeralOwner)

    def end_session(self, session_id: int) -> None:
        """Ends it at the ensemble, as its administrator can; its owner is not asked."""
        password = (self.broker.data_dir / DIRECTORY / str(session_id)).read_text()
        with self.client((session_id, bytes.fromhex(password))) as client:
            assert client.client_id[0] == session_id

    def newest_leadership(self) -> int:
        """The transaction in which a partition's state was written last."""
        states = [f"/brokers/topics/{TOPIC}/partitions/{number}/state" for number in range(PARTITIONS)]
        return max(int(self.node(path)[1].mzxid) for path in states)

    def check_all_is_well(self) -> None:
        """Topics are created, all slots are registered, and there is one controller, of the newest epoch."""
        admin = f"after-{time.monotonic_ns()}"
        wait_until(lambda: is_created(self.broker, admin), "a topic is created", timeout_s=WAIT_S)
        with self.client() as client:
            assert sorted(client.get_children("/brokers/ids")) == [str(slot) for slot in range(SLOTS)]
            assert len(client.get_children(f"/brokers/topics/{admin}/partitions")) == 1
        assert "Traceback" not in self.broker.output()


def goes_on(load: Workload, *, without: Collection[int] = ()) -> None:
    """Every partition acknowledges more than may have been under way before."""
    wanted = [0 if number in without else count + MORE for number, count in enumerate(load.acknowledged())]
    late = load.await_progress(wanted, WAIT_S)
    assert not late, f"partitions {late} acknowledge nothing"
    assert not load.failures


def is_created(broker: Appliance, topic: str) -> bool:
    """One before it, that was refused, may have taken place though its answer was lost."""
    return create_topic(broker.port, topic) in (0, ErrorCode.TOPIC_ALREADY_EXISTS)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    ensemble = Ensemble(tmp_path_factory.mktemp("ensemble"), can_be_cut=True)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.kill()


@pytest.fixture
def ensemble(started: Ensemble) -> Ensemble:
    """Whole, whatever the test before has done to it."""
    started.mend()
    started.start()
    return started


StartWatched = Callable[..., Watched]


@pytest.fixture
def start(ensemble: Ensemble, tmp_path: Path) -> Iterator[StartWatched]:
    made: list[Watched] = []

    def started(*, session_timeout_ms: int = LONG_MS) -> Watched:
        watched = Watched(ensemble, tmp_path / "data", session_timeout_ms=session_timeout_ms)
        made.append(watched)
        watched.broker.start()
        return watched

    yield started
    for watched in made:
        watched.broker.stop()


def test_each_record_is_read_once_though_leaders_of_the_ensemble_and_of_partitions_die(
    ensemble: Ensemble, start: StartWatched
) -> None:
    watched = start()
    with watched.under_load() as load:
        for slot in (1, 2):
            ensemble.start()
            ensemble.leader().kill()
            # The controller can give its partitions to others once the ensemble has a leader again.
            watched.broker.kill_role(f"ioproc {slot}.0")
            goes_on(load)
        watched.check_all_is_well()


def test_each_record_is_read_once_though_the_controllers_server_is_cut_off_with_a_minority(
    ensemble: Ensemble, start: StartWatched
) -> None:
    watched = start()
    with watched.under_load() as load:
        session_id = watched.controller_session()
        wait_until(lambda: ensemble.server_of(session_id) is not None, "its server", timeout_s=WAIT_S)
        alone = ensemble.server_of(session_id)
        assert alone is not None
        ensemble.cut_off(alone)
        try:
            watched.broker.kill_role("ioproc 1.0")
            goes_on(load)
            watched.check_all_is_well()
            session_id = watched.controller_session()
            wait_until(lambda: not alone.has_connection_of(session_id), "it has moved", timeout_s=WAIT_S)
        finally:
            ensemble.mend()
        ensemble.await_whole()


def test_controller_that_slept_while_another_one_won_commands_nothing_until_it_has_won_again(
    ensemble: Ensemble, start: StartWatched, tmp_path: Path
) -> None:
    watched = start()
    broker = watched.broker
    with watched.under_load() as load:
        session_id = watched.controller_session()
        (sleeper,) = broker.pids("controller")
        suspend(sleeper)
        try:
            watched.end_session(session_id)
            other = opened(watched.connect, tmp_path / "other")
            second = win(other, SystemClock())
            assert second is not None
            goes_on(load)
            broker.kill_role("ioproc 1.0")
        finally:
            os.kill(sleeper, signal.SIGCONT)
        wait_until(
            lambda: "another controller is active" in broker.output(), "it stands by", timeout_s=WAIT_S
        )
        won = other.exists("/controller")
        assert won is not None
        assert watched.newest_leadership() < won.created_zxid
        assert watched.epoch() == second.epoch
        other.close()
        goes_on(load)
        watched.check_all_is_well()
        assert watched.epoch() > second.epoch


def opened(connect: str, data_dir: Path) -> ZooKeeperStore:
    """A session; a server that is late is asked again."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return ZooKeeperStore(connect, 2 * LONG_MS, data_dir=data_dir, clock=SystemClock())
        except StoreUnavailable:
            assert time.monotonic() < deadline, "no session"


def test_records_flow_while_the_whole_ensemble_is_gone_and_all_is_well_when_it_is_back(
    ensemble: Ensemble, start: StartWatched
) -> None:
    watched = start(session_timeout_ms=SHORT_MS)
    broker = watched.broker
    create(broker, ASKED, SLOTS, replicas=SLOTS)
    with watched.under_load() as load:
        read_as_a_member(broker, "known")
        epoch = watched.epoch()
        for server in ensemble.servers:
            server.kill()
        gone_since = time.monotonic()
        wait_until(lambda: "may have expired" in broker.output(), "the session's end", timeout_s=WAIT_S)
        goes_on(load)
        for group in ("known", "new"):
            read_as_a_member(broker, group)
        refused = create_topic(broker.port, "refused", timeout_ms=2_000)
        assert refused in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
        # Nobody can be given the partitions of who dies now: they wait, the others do not.
        orphans = {number for number, leader in leaders(broker, TOPIC).items() if leader == 1}
        assert orphans
        broker.kill_role("ioproc 1.0")
        assert answers_of_the_dead(broker) <= RETRIABLE
        while time.monotonic() < gone_since + OUTAGE_S:
            goes_on(load, without=orphans)
        ensemble.start()
        goes_on(load)
        watched.check_all_is_well()
        assert watched.epoch() > epoch
        read_as_a_member(broker, "new")


def answers_of_the_dead(broker: Appliance) -> set[int]:
    """What who asks slot 1 for a partition that it leads is told, again and again."""
    (partition,) = (number for number, leader in leaders(broker, ASKED).items() if leader == 1)
    told: set[int] = set()
    with WireSocket(broker.port + 1, timeout_s=WAIT_S) as connection:
        for _ in range(20):
            told.add(produce(connection, ASKED, encode_batch([Record(b"?")]), partition=partition).error)
    return told


def read_as_a_member(broker: Appliance, group: str) -> None:
    """Reads of every partition that goes on, and commits it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(broker),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    seen: set[int | None] = set()
    deadline = time.monotonic() + WAIT_S
    while len(seen) < PARTITIONS:
        assert time.monotonic() < deadline, f"{group} has read of {seen}"
        seen |= {message.partition() for message in consumer.consume(500, 1.0) if message.error() is None}
    consumer.commit(asynchronous=False)
    consumer.close()
