"""A controller whose tree is in ZooKeeper: what the server's silence and return, and its own death, make of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from appliance.channels.child import EXIT_CANNOT_START, EXIT_CLEAN
from appliance.channels.control_channel import CreateTopics, NewTopic, TopicOutcomes
from appliance.channels.supervision import Ready
from appliance.clock import SystemClock
from appliance.cluster import BrokerSlot
from appliance.config import MetadataSettings
from appliance.config.sections.listeners import Listener
from appliance.control.controller.takeover import register, win
from appliance.control.store.errors import BadVersion
from appliance.control.store.left_sessions import DIRECTORY, HANDED_ON
from appliance.control.store.metadata_store import Create
from appliance.control.store.opening import open_store
from appliance.control.store.zookeeper_store import ZooKeeperStore
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance
from tests.control.controller.test_crash import new_life
from tests.control.controller.test_topics import check_served
from tests.support.zookeeper import ZooKeeper

SESSION_TIMEOUT_MS = 8000
"""So short that a test can wait for its end, and long enough for a machine that stands still for some seconds."""

CHROOT = "/kafka/one"


def settings(server: ZooKeeper, *, timeout_ms: int = SESSION_TIMEOUT_MS) -> MetadataSettings:
    return MetadataSettings(
        store="zookeeper",
        zookeeper_connect=f"{server.address}{CHROOT}",
        zookeeper_session_timeout_ms=timeout_ms,
    )


def serving(new_instance: NewInstance, metadata: MetadataSettings) -> Instance:
    instance = new_instance(metadata=metadata)
    instance.start()
    instance.start_worker()
    instance.until(lambda: instance.images.version > 0)
    return instance


@contextmanager
def any_client(server: ZooKeeper, *, session: tuple[int, bytes] | None = None) -> Iterator[KazooClient]:
    client = KazooClient(hosts=server.address + CHROOT, client_id=session)
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


def test_tree_is_kafkas_for_any_zookeeper_client(new_instance: NewInstance, own_zookeeper: ZooKeeper) -> None:
    instance = serving(new_instance, settings(own_zookeeper, timeout_ms=60_000))
    instance.create(NewTopic("t", partitions=2, configs={"retention.ms": "1000"}))
    with any_client(own_zookeeper) as client:

        def read(path: str) -> object:
            return json.loads(client.get(path)[0])

        assert {"admin", "brokers", "cluster", "config", "controller", "controller_epoch"} <= set(
            client.get_children("/")
        )
        assert client.get_children("/brokers/ids") == ["0"]
        broker = read("/brokers/ids/0")
        assert isinstance(broker, dict)
        assert (broker["version"], broker["port"]) == (5, instance.settings.port)
        topic = read("/brokers/topics/t")
        assert isinstance(topic, dict)
        assert topic["partitions"] == {"0": [0], "1": [0]}
        assert sorted(client.get_children("/brokers/topics/t/partitions")) == ["0", "1"]
        assert read("/brokers/topics/t/partitions/0/state") == {
            "controller_epoch": 1,
            "leader": 0,
            "version": 1,
            "leader_epoch": 0,
            "isr": [0],
        }
        assert read("/config/topics/t") == {"version": 1, "config": {"retention.ms": "1000"}}
        controller = read("/controller")
        assert isinstance(controller, dict)
        assert controller["brokerid"] == 0
        assert client.get("/controller_epoch")[0] == b"1"
        owners = [client.exists(path).ephemeralOwner for path in ("/controller", "/brokers/ids/0")]
        assert all(owners)
        assert len(set(owners)) == 2, "a registration goes with a controller"
        instance.delete("t")
        assert client.get_children("/brokers/topics") == []
        assert client.get_children("/config/topics") == []
        assert client.get_children("/admin/delete_topics") == []


def test_killed_controller_is_followed_at_once_though_its_session_would_live_on(
    new_instance: NewInstance, own_zookeeper: ZooKeeper
) -> None:
    instance = serving(new_instance, settings(own_zookeeper, timeout_ms=60_000))
    instance.create("t")
    epoch = instance.image.controller_epoch
    instance.kill()
    new_life(instance)
    assert instance.image.controller_epoch == epoch + 1
    check_served(instance)
    with any_client(own_zookeeper) as client:
        assert client.get_children("/brokers/ids") == ["0"], "an ephemeral went with the session before"
        assert len(client.get_children("/writers")) == 2, "one was left"


def created(server: ZooKeeper, path: str) -> int | None:
    """By which change of the tree a node came. Leaves no thread behind: who asks forks."""
    with any_client(server) as client:
        stat = client.exists(path)
        return None if stat is None else int(stat.czxid)


def test_registration_of_a_slot_does_not_go_with_a_controller(
    new_instance: NewInstance, own_zookeeper: ZooKeeper
) -> None:
    instance = new_instance(metadata=settings(own_zookeeper, timeout_ms=60_000), slots=2)
    instance.start()
    instance.start_slots()
    registered = created(own_zookeeper, "/brokers/ids/1")
    for _ in range(2):
        before = created(own_zookeeper, "/controller")
        instance.kill()
        new_life(instance)
        assert created(own_zookeeper, "/controller") != before
        assert created(own_zookeeper, "/brokers/ids/1") == registered, "it was made anew"
    # The session that was gone on with takes changes like any other.
    instance.lose(instance.workers[1], instance.replicas[1])
    instance.until(lambda: created(own_zookeeper, "/brokers/ids/1") is None)
    instance.start_worker(1)
    instance.until(lambda: created(own_zookeeper, "/brokers/ids/1") is not None)


def test_registrations_go_at_once_when_everything_stops(
    new_instance: NewInstance, own_zookeeper: ZooKeeper
) -> None:
    instance = serving(new_instance, settings(own_zookeeper, timeout_ms=60_000))
    assert created(own_zookeeper, "/brokers/ids/0") is not None
    assert instance.stop() == EXIT_CLEAN
    with any_client(own_zookeeper) as client:
        assert client.get_children("/brokers/ids") == []
        assert client.get_children("/writers") == []


LISTENERS = (
    Listener("PLAINTEXT", "PLAINTEXT", "localhost", 9092),
    Listener("OUT", "SASL_SSL", "0.0.0.0", 9192, "logs.example", 19192),
)


def test_registration_of_a_session_that_will_end_is_replaced_in_one_step(
    tmp_path: Path, own_zookeeper: ZooKeeper
) -> None:
    connect, clock = f"{own_zookeeper.address}{CHROOT}", SystemClock()
    store = ZooKeeperStore(connect, 60_000, data_dir=tmp_path, clock=clock)
    ours = ZooKeeperStore(connect, 60_000, data_dir=tmp_path, clock=clock, handed_on=True)
    fence = win(store, clock)
    assert fence is not None
    slots = [BrokerSlot(0, "localhost", 9092, None)]
    register(store, slots, fence, live=[0], clock=clock, listeners=LISTENERS)
    register(ours, slots, fence, live=[0], clock=clock, listeners=LISTENERS)
    stat = ours.get("/brokers/ids/0").stat
    record = json.loads(ours.get("/brokers/ids/0").data)
    assert (record["host"], record["port"]) == ("localhost", 9092)
    assert record["endpoints"] == ["PLAINTEXT://localhost:9092", "OUT://logs.example:19192"]
    assert record["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT", "OUT": "SASL_SSL"}
    assert stat.ephemeral_owner == ours.session_id
    register(ours, slots, fence, live=[0], clock=clock, listeners=LISTENERS)
    assert ours.get("/brokers/ids/0").stat == stat
    register(ours, slots, fence, live=[0], clock=clock, listeners=LISTENERS, begins_anew=True)
    assert ours.get("/brokers/ids/0").stat.created_zxid > stat.created_zxid
    other = ZooKeeperStore(connect, 60_000, data_dir=tmp_path / "other", clock=clock)
    other.set("/controller_epoch", b"7")
    with pytest.raises(BadVersion):
        register(ours, slots, fence, live=[], clock=clock, listeners=LISTENERS)
    assert ours.exists("/brokers/ids/0") is not None, "a controller that is none any more took it away"
    for each in (other, ours, store):
        each.close()


def test_silent_store_refuses_in_time_changes_nothing_and_is_used_again_when_it_answers(
    new_instance: NewInstance, own_zookeeper: ZooKeeper
) -> None:
    instance = serving(new_instance, settings(own_zookeeper, timeout_ms=60_000))
    instance.create("old")
    own_zookeeper.kill()
    check_refused(instance)
    own_zookeeper.start()
    check_used_again(instance)


def check_refused(instance: Instance) -> None:
    """A change is refused in time, and nothing has changed."""
    (refused,) = instance.create("new")
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert sorted(instance.image.topics) == ["old"]


def check_used_again(instance: Instance) -> None:
    """What was refused is done once the store answers."""
    deadline = time.monotonic() + 60
    while not is_created(instance, "new"):
        assert time.monotonic() < deadline, "the store is not used again"
    assert sorted(instance.image.topics) == ["new", "old"]
    check_served(instance)


def is_created(instance: Instance, topic: str) -> bool:
    """One attempt. One before it, that was refused while the connection came back, may have taken place: its answer was
    lost. A controller that learns so of a change that it had refused begins anew."""
    number = instance.ask(CreateTopics((NewTopic(topic),)))
    if not instance.until(lambda: number in instance.answers, or_dead=True):
        new_life(instance)
        return topic in instance.image.topics
    answer = instance.answers.pop(number)
    assert isinstance(answer, TopicOutcomes)
    assert answer.outcomes[0].error in (0, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.KAFKA_STORAGE_ERROR)
    return answer.outcomes[0].error != ErrorCode.KAFKA_STORAGE_ERROR


def test_controller_whose_session_may_be_over_goes_though_nobody_tells_it(
    new_instance: NewInstance, own_zookeeper: ZooKeeper
) -> None:
    instance = serving(new_instance, settings(own_zookeeper))
    instance.create("t")
    epoch = instance.image.controller_epoch
    own_zookeeper.pause()
    # By its own clock; that this comes before the server's is the lease's affair.
    assert instance.reap() == EXIT_CANNOT_START
    # Its next life says nothing until the store answers; what was served goes on meanwhile.
    instance.launch()
    assert not instance.speaks(timeout_ms=500)
    assert "t" in instance.image.topics
    own_zookeeper.resume()
    assert instance.hear_child() == [Ready()]
    new_life_of_workers(instance)
    assert instance.image.controller_epoch == epoch + 1
    check_served(instance)


def new_life_of_workers(instance: Instance) -> None:
    for worker in instance.workers.values():
        worker.hello()
    instance.create("probe")
    instance.delete("probe")


@pytest.mark.parametrize("whose", ["the controller's", "the slots'"])
def test_session_that_is_ended_at_the_server_ends_the_controller_and_the_next_one_fences_it(
    new_instance: NewInstance, own_zookeeper: ZooKeeper, whose: str
) -> None:
    instance = serving(new_instance, settings(own_zookeeper, timeout_ms=60_000))
    instance.create("t")
    epoch = instance.image.controller_epoch
    directory = instance.settings.data_dir / DIRECTORY
    (left,) = (path for path in directory.iterdir() if path.name != HANDED_ON)
    session_id, password = left.name, left.read_text()
    if whose == "the slots'":
        session_id, password = (directory / HANDED_ON).read_text().split()
    with any_client(own_zookeeper, session=(int(session_id), bytes.fromhex(password))):
        pass
    assert instance.reap() == EXIT_CANNOT_START
    new_life(instance)
    assert instance.image.controller_epoch == epoch + 1
    check_served(instance)
    assert created(own_zookeeper, "/brokers/ids/0") is not None


@pytest.mark.slow
def test_server_whose_disk_is_full_refuses_changes_and_is_used_again_when_it_has_room(
    new_instance: NewInstance, own_zookeeper: ZooKeeper
) -> None:
    instance = serving(new_instance, settings(own_zookeeper, timeout_ms=60_000))
    instance.create("old")
    own_zookeeper.fill_disk()
    check_refused(instance)
    own_zookeeper.await_end()
    own_zookeeper.start()
    check_used_again(instance)


@pytest.mark.slow
def test_paused_controller_whose_session_expired_changes_nothing_when_it_wakes(
    new_instance: NewInstance, own_zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    instance = serving(new_instance, settings(own_zookeeper))
    instance.create("t")
    epoch = instance.image.controller_epoch
    os.kill(instance.pid, signal.SIGSTOP)
    # Somebody else wins meanwhile, once the session of the one that sleeps is over.
    other = ZooKeeperStore(
        f"{own_zookeeper.address}{CHROOT}", 60_000, data_dir=tmp_path / "other", clock=SystemClock()
    )
    deadline = time.monotonic() + 60
    while (second := win(other, SystemClock())) is None:
        assert time.monotonic() < deadline, "the session does not expire"
        time.sleep(0.05)
    assert second.epoch == epoch + 1
    number = instance.ask(CreateTopics((NewTopic("fenced"),)))
    os.kill(instance.pid, signal.SIGCONT)
    assert instance.reap() == EXIT_CANNOT_START
    assert other.exists("/brokers/topics/fenced") is None
    other.multi([second.check, Create("/still the controller")])
    other.delete("/still the controller")
    other.close()
    answer = instance.answers.get(number)
    assert answer is None or (isinstance(answer, TopicOutcomes) and answer.outcomes[0].error)
    new_life(instance)
    assert instance.image.controller_epoch == epoch + 2
    assert sorted(instance.image.topics) == ["t"]


@pytest.mark.slow
def test_topic_of_more_nodes_than_one_change_takes_is_created_grown_and_forgotten(
    new_instance: NewInstance, own_zookeeper: ZooKeeper
) -> None:
    instance = serving(new_instance, settings(own_zookeeper, timeout_ms=60_000))
    name = "n" * 100
    (created,) = instance.create(NewTopic(name, partitions=1_500))
    assert created.error == 0
    assert instance.grow(name, 3_000).error == 0
    (too_large,) = instance.create(NewTopic("m" * 249, partitions=2_000))
    assert too_large.error == ErrorCode.INVALID_REQUEST
    (deleted,) = instance.delete(name)
    assert deleted.error == 0
    with open_store_of(instance) as names:
        assert names == []


@contextmanager
def open_store_of(instance: Instance) -> Iterator[list[str]]:
    store = open_store(instance.settings, SystemClock())
    yield store.children("/brokers/topics")
    store.close()
