"""Answers that no honest broker gives, or only in the worst moment: the client's thread survives, and nobody waits."""

from __future__ import annotations

import logging
import random
from collections import deque
from typing import Any

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.join_group import JoinGroupMember, JoinGroupResponse
from appliance.protocol.apis.metadata import (
    MetadataBroker,
    MetadataResponse,
    MetadataTopic,
)
from appliance.protocol.apis.sync_group import SyncGroupResponse
from appliance.protocol.errors import ErrorCode
from appliance_client.assignors import Subscription, encode_subscription
from appliance_client.connection import Connection
from appliance_client.consumer_core import ConsumerCore
from appliance_client.errors import ClientError
from appliance_client.options import ConsumerOptions, ProducerOptions, options_of
from appliance_client.transactions import State
from appliance_client.values import TopicPartition
from tests.native.scripted import TOPIC_ID, ScriptedCluster


def cluster(**options: Any) -> ScriptedCluster:
    return ScriptedCluster(options_of(ProducerOptions, None, {"linger_ms": 0, **options}))


@pytest.mark.parametrize("leader", [77, -1, -2, -1_000_001])
def test_a_leader_that_is_no_broker_is_asked_for_again_and_kills_nobody(leader: int) -> None:
    """-2 is the id of a bootstrap server here, and lower ones those of connections to coordinators."""
    made = cluster(bootstrap_servers="a:1,b:2")
    honest = made.leader
    made.leader = leader
    sent = made.send(b"x")
    made.pass_s(1)
    assert not sent.done()
    made.leader = honest
    made.pass_s(2)
    assert sent.done()
    assert sent.exception() is None


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_init_that_was_cancelled_can_be_made_again() -> None:
    """As `asyncio.wait_for` cancels it, or Ctrl-C."""
    made = cluster(transactional_id="id")
    made.is_down = True
    task = made.core.scheduler.spawn(made.sender.transactions.init())
    made.pass_s(0.1)
    task.cancel()
    made.pass_s(0.1)
    made.is_down = False
    made.run(made.sender.transactions.init())
    assert made.sender.transactions.state is State.READY


def test_an_epoch_that_could_not_be_raised_in_time_is_raised_by_the_next_call() -> None:
    """Or a record of the aborted transaction could join the next one."""
    made = cluster(transactional_id="id", max_block_ms=2_000, request_timeout_ms=500)
    transactions = made.sender.transactions
    made.run(transactions.init())
    transactions.begin()
    made.answers.append(lambda _produced: None)  # it may have been written
    made.send(b"x")
    made.pass_s(0.1)
    made.scripts[ApiKey.INIT_PRODUCER_ID] = deque([b""] * 30)  # silence
    made.answers.extend([lambda _produced: None] * 50)
    before = made.sender.producer_id
    with pytest.raises(ClientError):
        made.run(transactions.abort(), 20.0)
    made.scripts.clear()
    made.answers.clear()
    made.run(transactions.abort())
    assert transactions.state is State.READY
    assert made.sender.producer_id != before, "the scripted cluster gives a new id with each InitProducerId"


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────


def consumer_of(made: ScriptedCluster, **options: Any) -> ConsumerCore:
    return ConsumerCore(options_of(ConsumerOptions, None, {"group_id": "g", **options}), made.core)


def told(consumer: ConsumerCore) -> ClientError:
    """What the next poll raises."""
    with pytest.raises(ClientError) as raised:
        consumer.take(1)
    return raised.value


@pytest.mark.parametrize("by", ["subscribe", "assign"])
@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION])
def test_a_topic_that_cannot_be_read_is_an_error_of_poll(by: str, code: ErrorCode) -> None:
    made = cluster()
    consumer = consumer_of(made)
    refusal = MetadataResponse((MetadataBroker(1, "node-1", 9092),), (MetadataTopic(int(code), "secret"),))
    made.scripts[ApiKey.METADATA] = deque([refusal] * 50)
    for silent in (ApiKey.JOIN_GROUP, ApiKey.OFFSET_FETCH):
        made.scripts[silent] = deque([b""])
    if by == "subscribe":
        consumer.subscribe("secret", None, None)
    else:
        consumer.assign([TopicPartition("secret", 0)])
    made.pass_s(0.3)
    error = told(consumer)
    assert error.code == code
    assert "topic secret" in str(error)


class Raises:
    name = "own"
    cooperative = False

    def assign(self, _partitions: Any, _members: Any) -> Any:
        raise KeyError("nothing")


class AnswersWrong(Raises):
    def assign(self, _partitions: Any, members: Any) -> Any:
        return {member: [5] for member in members}


def joined(made: ScriptedCluster) -> None:
    """Have a member be the leader of its group."""
    said = encode_subscription(Subscription(("topic",)))
    member = JoinGroupMember("m", said)
    made.scripts[ApiKey.JOIN_GROUP] = deque(
        [JoinGroupResponse(0, 1, "consumer", "own", "m", member_id="m", members=(member,))] * 3
    )


@pytest.mark.parametrize("assignor", [Raises, AnswersWrong])
def test_an_assignor_of_the_application_that_raises_is_an_error_of_poll(assignor: type[Any]) -> None:
    made = cluster()
    consumer = consumer_of(made, partition_assignment_strategy=[assignor])
    joined(made)
    consumer.subscribe("topic", None, None)
    made.pass_s(1)
    assert "the assignor own raised" in str(told(consumer))


def test_an_assignment_that_does_not_parse_is_an_error_of_poll() -> None:
    made = cluster()
    consumer = consumer_of(made, partition_assignment_strategy=["range"])
    made.scripts[ApiKey.JOIN_GROUP] = deque(
        [JoinGroupResponse(0, 1, "consumer", "range", "other", member_id="m")]
    )
    made.scripts[ApiKey.SYNC_GROUP] = deque(
        [SyncGroupResponse(0, b"\x00\x01\x7f\xff\xff\xff", "consumer", "range")]
    )
    consumer.subscribe("topic", None, None)
    made.pass_s(1)
    assert "does not parse" in str(told(consumer))
    assert TOPIC_ID in made.core.metadata.names


# ── mutated answers ──────────────────────────────────────────────────────────────────────────────────────


class Lying(ScriptedCluster):
    """One answer in six is not what it was."""

    dice: random.Random

    def _answer(self, connection: Connection, frame: memoryview) -> bytes:
        honest = super()._answer(connection, frame)
        return honest if not honest or self.dice.random() > 1 / 6 else mutated(honest, self.dice)


def mutated(answer: bytes, dice: random.Random) -> bytes:
    """The size in front is always right: a wrong one ends the connection, as `test_connections` shows."""
    body = bytearray(answer)
    at = dice.randrange(8, len(body))
    kind = dice.randrange(5)
    if kind == 0:
        del body[dice.randrange(8, len(body) + 1) :]
    elif kind == 1:
        body[at] = dice.randrange(256)
    elif kind == 2:
        body[at : at + 4] = dice.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"\x80\0\0\0"])
    elif kind == 3:
        body[at:at] = dice.randbytes(dice.randrange(1, 9))
    else:
        del body[8:]
    return (len(body) - 4).to_bytes(4, "big") + bytes(body[4:])


def test_no_answer_of_a_broker_ends_the_clients_thread_or_a_task_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for seed in range(150):
        made = Lying(options_of(ProducerOptions, None, {"linger_ms": 0, "request_timeout_ms": 500}))
        made.dice = random.Random(seed)
        futures = [made.send(b"%d" % number, number % 3) for number in range(6)]
        made.pass_s(5)
        made.dice = random.Random(0)
        made.dice.random = lambda: 1.0  # type: ignore[method-assign]
        made.pass_s(200)
        assert all(each.done() for each in futures), (
            f"seed {seed}: it goes on when the broker is honest again"
        )
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
