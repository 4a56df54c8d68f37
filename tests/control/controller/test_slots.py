"""A cluster whose slots become fewer and more again: leaders move, epochs grow, nothing in sync is forgotten."""

from __future__ import annotations

from appliance.channels.control_channel import NewTopic
from appliance.cluster import NO_LEADER
from tests.control.controller.conftest import NewInstance
from tests.control.controller.test_topics import check_served


def test_leaders_move_to_the_slots_that_are_left_and_lonely_partitions_wait(
    new_instance: NewInstance,
) -> None:
    three = new_instance(slots=3)
    three.start()
    for slot in range(3):
        three.start_worker(slot)
    three.create(
        NewTopic("shared", assignments={0: (2, 0), 1: (0, 2)}), NewTopic("lonely", assignments={0: (2,)})
    )
    check_served(three)
    three.stop()
    three.close()

    one = new_instance(slots=1)
    one.disks[0] = three.disks[0]
    one.start()
    one.start_worker()
    one.until(lambda: one.images.version > 0)
    moved, stayed = one.image.topics["shared"].partitions
    assert (moved.leader, moved.leader_epoch, moved.isr) == (0, 1, (0,))
    assert (stayed.leader, stayed.leader_epoch, stayed.isr) == (0, 1, (0,))
    (lonely,) = one.image.topics["lonely"].partitions
    assert (lonely.leader, lonely.leader_epoch, lonely.isr) == (NO_LEADER, 1, (2,))
    one.stop()
    one.close()

    again = new_instance(slots=3)
    again.disks.update(three.disks)
    again.start()
    for slot in range(3):
        again.start_worker(slot)
    again.until(lambda: again.images.version > 0)
    (back,) = again.image.topics["lonely"].partitions
    assert (back.leader, back.leader_epoch, back.isr) == (2, 2, (2,))
    # Everything was started anew, so the leader that stays begins a new epoch.
    moved, _ = again.image.topics["shared"].partitions
    assert (moved.leader, moved.leader_epoch, moved.isr) == (0, 2, (0,))
