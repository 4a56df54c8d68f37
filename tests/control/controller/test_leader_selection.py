from __future__ import annotations

from appliance.control.controller.leader_selection import Election, of_new_partition, of_offline_partition


def test_new_partition_is_led_by_its_first_live_replica() -> None:
    assert of_new_partition((2, 0, 1), {0, 1, 2}) == Election(2, (2, 0, 1))
    assert of_new_partition((2, 0, 1), {0, 1}) == Election(0, (0, 1))
    assert of_new_partition((2,), {0}) is None


def test_offline_partition_goes_to_the_first_replica_that_lives_and_is_in_sync() -> None:
    assert of_offline_partition((0, 1, 2), (2, 1), live={1, 2}) == Election(1, (2, 1))
    assert of_offline_partition((0, 1, 2), (0, 2), live={1, 2}) == Election(2, (2,))


def test_replica_out_of_sync_leads_only_where_loss_is_allowed() -> None:
    assert of_offline_partition((0, 1), (0,), live={1}) is None
    unclean = of_offline_partition((0, 1), (0,), live={1}, unclean_allowed=True)
    assert unclean == Election(1, (1,), unclean=True)
    assert of_offline_partition((0, 1), (0,), live=set(), unclean_allowed=True) is None
