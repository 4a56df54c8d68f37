"""What a KIP-848 group says of committed offsets: who may commit and fetch, and which offsets stay."""

from __future__ import annotations

from appliance.control.coordinator.group.effects import OffsetExpiry
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.group.consumer import (
    Consumer,
    scene_with,
    settle,
    settled_pair,
)
from tests.control.coordinator.group.scene import GROUP, Scene


def commit_error(scene: Scene, member_id: str, epoch: int, *, version: int = 9) -> int:
    client = Client("c", "/h", slot=0, api_version=version)
    return scene.groups.check_commit(
        GROUP, member_id=member_id, instance_id=None, generation=epoch, api_version=client.api_version
    )


def test_members_commit_and_fetch_in_their_epoch_only() -> None:
    scene = scene_with()
    one = Consumer(scene, "one")
    one.join()
    assert commit_error(scene, "one", 1) == ErrorCode.NONE
    assert commit_error(scene, "one", 0) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit_error(scene, "two", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_error(scene, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_error(scene, "one", 1, version=8) == ErrorCode.UNSUPPORTED_VERSION
    client = Client("c", "/h", slot=0, api_version=9)
    fetch = scene.groups.check_fetch
    assert fetch(GROUP, member_id=None, epoch=-1, client=client) == ErrorCode.NONE
    assert fetch(GROUP, member_id="one", epoch=1, client=client) == ErrorCode.NONE
    assert fetch(GROUP, member_id="one", epoch=7, client=client) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(GROUP, member_id="two", epoch=1, client=client) == ErrorCode.UNKNOWN_MEMBER_ID
    one.ask(member_epoch=-1)
    assert commit_error(scene, "", -1) == ErrorCode.NONE


def test_a_commit_that_crosses_with_a_new_epoch_counts_while_the_member_has_lost_nothing() -> None:
    scene = scene_with(4)
    one, two = settled_pair(scene)
    assert (one.epoch, two.epoch) == (2, 2)
    assert commit_error(scene, "one", 1) == ErrorCode.STALE_MEMBER_EPOCH
    two.ask(member_epoch=-1)
    settle(one)
    assert (one.epoch, one.count) == (3, 4)
    assert commit_error(scene, "one", 2) == ErrorCode.NONE
    assert commit_error(scene, "one", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit_error(scene, "one", 5) == ErrorCode.STALE_MEMBER_EPOCH
    scene.restart()
    assert commit_error(scene, "one", 3) == ErrorCode.NONE


def test_offsets_of_subscribed_topics_stay() -> None:
    scene = scene_with()
    scene.cluster.create("returns", 1)
    Consumer(scene, "one", subscribed_topic_names=("orders",), subscribed_topic_regex="ret.*").join()
    assert scene.groups.offset_expiry(GROUP) == OffsetExpiry(subscribed=frozenset({"orders", "returns"}))
    assert scene.groups.check_offset_delete(GROUP) == ErrorCode.NONE
    assert scene.groups.topic_delete_check(GROUP)("returns") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert scene.groups.topic_delete_check(GROUP)("other") == ErrorCode.NONE


def test_in_a_transaction_a_stale_epoch_is_an_illegal_generation_and_nobody_may_be_named() -> None:
    scene = scene_with()
    one = Consumer(scene, "one")
    one.join()

    def error(member_id: str, epoch: int) -> int:
        return scene.groups.check_transactional_commit(
            GROUP, member_id=member_id, instance_id=None, generation=epoch
        )

    assert error("one", 1) == ErrorCode.NONE
    assert error("one", 0) == ErrorCode.ILLEGAL_GENERATION
    assert error("two", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert error("", -1) == ErrorCode.NONE
    assert error("", -2) == ErrorCode.UNKNOWN_MEMBER_ID
    one.ask(member_epoch=-1)
    assert error("", -2) == ErrorCode.NONE
