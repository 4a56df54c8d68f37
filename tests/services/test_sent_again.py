from __future__ import annotations

from uuid import UUID

from appliance.delivery.waiting import Origin, Waiting
from appliance.protocol.records.record import Record
from appliance.services.sent_again import SentAgain


def waiting(
    offset: int, sequence: int = 0, *, producer: int = 1, partition: int = 0, epoch: int = 0
) -> Waiting:
    return Waiting(UUID(int=1), partition, offset, 0, Origin(producer, epoch, sequence), Record(b""))


def test_a_batch_that_is_sent_again_is_known_up_to_what_was_stored() -> None:
    seen = SentAgain()
    assert [seen.is_known(waiting(offset)) for offset in (7, 9)] == [False, False]
    assert [seen.is_known(waiting(offset)) for offset in (7, 9, 12)] == [True, True, False]


def test_batches_may_come_in_any_order() -> None:
    seen = SentAgain()
    assert not seen.is_known(waiting(20, 10))
    assert not seen.is_known(waiting(5, 0))
    assert seen.is_known(waiting(20, 10))
    assert seen.is_known(waiting(5, 0))


def test_producers_partitions_and_epochs_are_told_apart() -> None:
    seen = SentAgain()
    for each in (waiting(1), waiting(1, producer=2), waiting(1, partition=1), waiting(1, epoch=1)):
        assert not seen.is_known(each)


def test_without_a_producer_nothing_is_known() -> None:
    seen = SentAgain()
    assert not any(seen.is_known(waiting(1, -1, producer=-1)) for _ in range(2))
    assert not len(seen)


def test_five_batches_of_a_producer_are_remembered_and_a_bounded_number_of_producers() -> None:
    seen = SentAgain(producers_max=3)
    for number in range(6):
        seen.is_known(waiting(number, number))
    assert [seen.is_known(waiting(number, number)) for number in (5, 4, 3, 2, 1)] == [True] * 5
    for producer in range(10, 20):
        seen.is_known(waiting(1, producer=producer))
    assert len(seen) == 3
