"""A waiting subscription learns within seconds that its topic, its leader or its client's rights have changed."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import suppress

import pytest
import zmq

from appliance.protocol.records.record import Record, encode_batch
from tests.support import zeromq_wire as wire
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.support.zeromq_wire import NothingCame, ZeroMqSession
from tests.system.raw import create_topic, produce, wait_until
from tests.system.test_zeromq import Context, Served
from tests.system.test_zeromq_push import error_of, pushed_offsets

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
TOPIC_AUTHORIZATION_FAILED = 29
ME = f"User:{getpass.getuser()}"
SOON_MS = 8_000
"""The wait of a Fetch on behalf of a subscription is a minute."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("zh")
    listener = f"ipc://{home}/s"
    appliance = Appliance(
        home / "data",
        slots=2,
        settings={
            "listeners.zeromq": [listener],
            "network.processes": 1,
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            "num.partitions": 1,
        },
    )
    appliance.start(180)
    served = Served(appliance, listener)
    command(served, "acls", "allow", ME, "all", "--topic", "*")
    try:
        yield served
    finally:
        appliance.stop()


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


def command(served: Served, *arguments: str) -> str:
    done = served.broker.run(*arguments, "--bootstrap", served.broker.address, timeout_s=60)
    assert not done.returncode, done.stderr
    return done.stdout


def write(served: Served, topic: str, value: bytes, slot: int = 0) -> int:
    with WireSocket(served.broker.port + slot) as connection:
        return produce(connection, topic, encode_batch([Record(value)])).error


def on_slot_0(served: Served, name: str) -> str:
    """Make a topic with one record."""
    assert create_topic(served.broker.port, name) == 0
    command(served, "reassign", "move", name, "--to", "0")
    wait_until(lambda: write(served, name, b"first") == 0, "slot 0 leads")
    return name


def last_error(session: ZeroMqSession, topic: str) -> int:
    """Return the error of the next push, which must be one."""
    error = error_of(session.push(SOON_MS)[1], topic)
    assert error
    return error


def subscribed(session: ZeroMqSession, topic: str) -> None:
    """Subscribe and read the one record, so that the subscription waits."""
    session.subscribe(1, topic)
    assert pushed_offsets(session, topic, 1) == [0]
    with pytest.raises(NothingCame):
        session.receive(300)


def test_a_deleted_topic_ends_its_subscriptions(served: Served, context: Context) -> None:
    topic = on_slot_0(served, "deleted")
    with ZeroMqSession(context, served.listener) as session:
        subscribed(session, topic)
        command(served, "topics", "delete", topic, "--yes")
        error = last_error(session, topic)
        assert error in (UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER)


def test_a_topic_that_is_made_again_is_another_one(served: Served, context: Context) -> None:
    """Its records are not those that the subscriber has asked for, and their offsets begin at 0 again."""
    topic = on_slot_0(served, "again")
    with ZeroMqSession(context, served.listener) as session:
        subscribed(session, topic)
        command(served, "topics", "delete", topic, "--yes")
        on_slot_0(served, topic)
        for _ in range(3):
            write(served, topic, b"other")
        error = last_error(session, topic)
        assert error in (UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER)


def test_a_leader_that_moves_ends_its_subscriptions(served: Served, context: Context) -> None:
    topic = on_slot_0(served, "moved")
    with ZeroMqSession(context, served.listener, broker_id=0) as session:
        subscribed(session, topic)
        command(served, "reassign", "move", topic, "--to", "1")
        error = last_error(session, topic)
        assert error == NOT_LEADER_OR_FOLLOWER
    with ZeroMqSession(context, served.listener, broker_id=1) as session:
        wait_until(lambda: write(served, topic, b"second", slot=1) == 0, "slot 1 leads")
        session.subscribe(1, topic)
        assert pushed_offsets(session, topic, 2) == [0, 1]


@pytest.mark.parametrize("is_written_at_once", [False, True], ids=["idle", "written"])
def test_a_subscriber_that_may_not_read_any_more_is_sent_nothing_more(
    is_written_at_once: bool, served: Served, context: Context
) -> None:
    """Also what is committed just after the change, before any look at the time."""
    topic = on_slot_0(served, f"secret-{is_written_at_once}")
    with ZeroMqSession(context, served.listener) as session:
        subscribed(session, topic)
        command(served, "acls", "deny", ME, "read", "--topic", topic)
        if is_written_at_once:
            assert not write(served, topic, b"for others only")
        push = session.push(SOON_MS)[1]
        assert error_of(push, topic) == TOPIC_AUTHORIZATION_FAILED
        assert b"for others only" not in push


def test_an_answer_that_waited_for_the_window_is_not_pushed_under_other_rules(
    served: Served, context: Context
) -> None:
    topic = on_slot_0(served, "paused")
    for _ in range(10):
        assert not write(served, topic, bytes(10_000))
    with ZeroMqSession(context, served.listener, window=20_000, acknowledges=False) as session:
        session.subscribe(1, topic, max_bytes=10_000)
        offsets: list[int] = []
        with suppress(NothingCame):
            while True:
                offsets += pushed_offsets(session, topic, len(offsets) + 1, timeout_ms=500)
        assert 0 < len(offsets) < 10
        command(served, "acls", "deny", ME, "read", "--topic", topic)
        session.credit(session.marks[-1], 1 << 20)
        assert error_of(session.push(SOON_MS)[1], topic) == TOPIC_AUTHORIZATION_FAILED


def test_other_rules_do_not_disturb_a_subscription(served: Served, context: Context) -> None:
    topic = on_slot_0(served, "calm")
    with ZeroMqSession(context, served.listener) as session:
        subscribed(session, topic)
        for number in range(3):
            command(served, "acls", "allow", f"User:{number}", "read", "--topic", topic)
            assert not write(served, topic, b"value")
            assert pushed_offsets(session, topic, number + 2) == [number + 1]


def test_a_subscriber_over_its_quota_waits_and_goes_on(served: Served, context: Context) -> None:
    topic, count = on_slot_0(served, "metered"), 30
    for _ in range(count - 1):
        assert not write(served, topic, bytes(10_000))
    whose = ("--user", ME.removeprefix("User:"))
    command(served, "quotas", "set", "consumer_byte_rate=5000", *whose)
    with ZeroMqSession(context, served.listener) as session:
        session.subscribe(1, topic, max_bytes=20_000)
        offsets: list[int] = []
        with suppress(NothingCame):
            while True:
                offsets += pushed_offsets(session, topic, len(offsets) + 1, timeout_ms=700)
        assert 0 < len(offsets) < count  # it is throttled
        session.heartbeat()
        assert session.receive().kind == wire.HEARTBEAT
        command(served, "quotas", "remove", "consumer_byte_rate", *whose)
        offsets += pushed_offsets(session, topic, count)
        assert offsets == list(range(count))
