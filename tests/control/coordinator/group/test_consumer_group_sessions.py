"""How members of a KIP-848 group go: in silence, by leaving, or for a while (static members)."""

from __future__ import annotations

from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.consumer import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    described,
    grow,
    scene_with,
    settle,
    settled_pair,
)
from tests.control.coordinator.group.scene import GROUP, Scene

# ── silence and leaving ───────────────────────────────────────────────────────────────────────────────────


def test_a_silent_member_is_out_after_its_session_and_its_partitions_are_free() -> None:
    scene = scene_with()
    one, two = settled_pair(scene)
    scene.pass_time(SESSION_MS)
    assert two.beat().error_code == 0
    scene.pass_time(1)
    settle(two)
    assert two.count == 4
    assert one.ask(member_epoch=one.epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_that_ends_while_the_members_heartbeat_is_written_does_not_put_it_out() -> None:
    scene = scene_with(2)
    one, two = settled_pair(scene)
    scene.pass_time(SESSION_MS - 15_000)
    one.beat()
    grow(scene, 3)
    scene.commits = False
    token = two.send(topic_partitions=two.said())
    scene.pass_time(20_000)  # the session of `two` ends, and its end has to wait its turn
    assert token not in scene.answers
    scene.commits = True
    scene.commit()
    two.take(scene.answers[token])
    assert {member.member_id for member in described(scene).members} == {"one", "two"}
    settle(one, two)
    assert one.count + two.count == 3


def test_a_session_that_ended_while_another_was_written_ends_for_who_stayed_silent() -> None:
    scene = scene_with(2)
    one, two = settled_pair(scene)
    scene.pass_time(SESSION_MS - 15_000)
    grow(scene, 3)
    scene.commits = False
    token = one.send(topic_partitions=one.said())
    scene.pass_time(20_000)
    late = two.send(topic_partitions=two.said())
    scene.commits = True
    scene.commit()
    one.take(scene.answers[token])
    assert scene.answers[late].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert [member.member_id for member in described(scene).members] == ["one"]
    settle(one)
    assert one.count == 3


def test_who_let_go_while_its_heartbeat_was_written_gets_all_of_it_when_it_joins_anew() -> None:
    scene = scene_with(4)
    one, two = settled_pair(scene)
    grow(scene, 5)
    scene.commits = False
    given_up = two.send(topic_partitions=two.said())
    scene.pass_time(SESSION_MS - 15_000)
    scene.commits = True
    scene.commit()
    assert scene.answers[given_up].assignment is None  # what it has is not told again but to who asks for all
    two.join()
    settle(one, two)
    assert one.count + two.count == 5


def test_a_member_that_does_not_give_up_in_time_is_out() -> None:
    scene = scene_with(2)
    one, two = Consumer(scene, "one"), Consumer(scene, "two")
    one.join()
    two.join()
    one.ask()
    for _ in range(REBALANCE_MS // 20_000):
        assert one.ask().member_epoch == 1
        two.beat()
        scene.pass_time(20_000)
    scene.pass_time(1)
    settle(two)
    assert two.count == 2
    assert one.ask().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_gave_up_in_time_is_not_out() -> None:
    scene = scene_with(2)
    one, two = settled_pair(scene)
    for _ in range(5):
        scene.pass_time(20_000)
        settle(one, two)
    assert (one.count, two.count) == (1, 1)


def test_the_last_member_leaves_an_empty_group() -> None:
    scene = scene_with()
    one = Consumer(scene, "one")
    one.join()
    assert one.ask(member_epoch=-1).member_epoch == -1
    assert described(scene).group_state == "Empty"
    assert scene.groups.next_deadline_ms() is None
    scene.restart()
    assert described(scene).group_state == "Empty"
    assert described(scene).members == ()


def test_a_members_session_is_as_long_as_its_group_was_given_by_now() -> None:
    scene = Scene()
    scene.cluster.create("orders", 2)
    member = Consumer(scene, "m")
    assert member.join().heartbeat_interval_ms == 5_000
    scene.cluster.configs[GROUP] = {
        "consumer.session.timeout.ms": "60000",
        "consumer.heartbeat.interval.ms": "15000",
    }
    assert member.beat().heartbeat_interval_ms == 15_000
    scene.pass_time(59_000)
    assert member.beat().error_code == 0
    scene.pass_time(61_000)
    assert member.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


# ── static members ────────────────────────────────────────────────────────────────────────────────────────


def test_a_static_member_that_was_away_gets_its_partitions_back() -> None:
    scene = scene_with(4)
    one, two = Consumer(scene, "one", instance_id="i1"), Consumer(scene, "two", instance_id="i2")
    one.join()
    two.join()
    settle(one, two)
    assert one.ask(member_epoch=-2).member_epoch == -2
    two.beat()
    assert two.count == 2
    back = Consumer(scene, "back", instance_id="i1")
    back.join()
    assert back.owned == one.owned
    assert back.epoch == two.epoch
    assert one.ask(member_epoch=one.epoch).error_code == ErrorCode.FENCED_INSTANCE_ID
    scene.groups.check()
    back.ask(member_epoch=-1)
    two.ask(member_epoch=-1)
    assert scene.groups.next_deadline_ms() is None


def test_an_instance_id_that_is_held_is_not_given_away() -> None:
    scene = scene_with()
    one = Consumer(scene, "one", instance_id="i1")
    one.join()
    assert Consumer(scene, "two", instance_id="i1").join().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.beat().error_code == 0


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    scene = scene_with(4)
    one, two = Consumer(scene, "one", instance_id="i1"), Consumer(scene, "two")
    one.join()
    two.join()
    settle(one, two)
    one.ask(member_epoch=-2)
    scene.pass_time(SESSION_MS - 1)
    two.beat()
    scene.pass_time(2)
    settle(two)
    assert two.count == 4


def test_a_static_member_of_an_unknown_instance_is_refused() -> None:
    scene = scene_with()
    Consumer(scene, "one").join()
    other = Consumer(scene, "two", instance_id="i9")
    assert other.ask(member_epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert other.ask(member_epoch=-2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
