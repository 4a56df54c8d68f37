"""What the owner of a partition checks of transactional batches and markers, and the errors it refuses them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from appliance.channels.partition_table import (
    LAST_STABLE_OFFSET,
    PartitionTable,
    table_size_bytes,
)
from appliance.channels.request_channel import (
    ANSWER_LOG_START,
    ERROR,
    FLAGS,
    FOUND_OFFSET,
    FOUND_TIMESTAMP_MS,
    PRODUCED_OFFSET,
    REJECT_REASON,
    Op,
    ProduceFlag,
    RejectReason,
    RequestFlag,
    ResponseFlag,
    marker_request,
    partition_request,
    permit_request,
    produce_request,
)
from appliance.ioproc.handlers.describe_producer import describe_producer
from appliance.ioproc.handlers.list_offsets import list_offsets
from appliance.ioproc.handlers.permit_transaction import permit_transaction
from appliance.ioproc.handlers.produce import Answer, produce
from appliance.ioproc.handlers.write_marker import write_marker
from appliance.ioproc.partition import Partition
from appliance.log.transaction_permits import PERMITS_MAX
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL
from tests.ioproc.test_partition_served import INCARNATION, leader
from tests.log.batches import NOW_MS, batch_of

PID: Final = 7
V1: Final = 11
TV2: Final = 12
COORDINATOR: Final = int(RequestFlag.COORDINATOR_ORIGIN)
VERIFIED: Final = int(RequestFlag.TRANSACTION_VERIFIED)
NAMED: Final = int(ProduceFlag.NAMED)
UNPROVED: Final = NAMED | int(ProduceFlag.UNPROVED)

NONE: Final = int(ErrorCode.NONE)
FENCED: Final = int(ErrorCode.INVALID_PRODUCER_EPOCH)
NO_TRANSACTION: Final = int(ErrorCode.INVALID_TXN_STATE)
OUT_OF_ORDER: Final = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
NOT_NAMED: Final = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
TOO_LARGE_BYTES: Final = 2 << 20
FAULTS: Final = {
    "too large": int(ErrorCode.MESSAGE_TOO_LARGE),
    "too late": int(ErrorCode.INVALID_TIMESTAMP),
    "damaged": int(ErrorCode.CORRUPT_MESSAGE),
}
ZOMBIE_COORDINATOR: Final = int(ErrorCode.TRANSACTION_COORDINATOR_FENCED)


class Owner:
    """A led partition and the requests of its worker's rings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(1, 2))), slots=2)
        self.partition: Partition = leader(path, self.table, 0, epoch=0, records=0, replicas=(0,))

    def answer(
        self,
        sequence: int,
        *,
        epoch: int = 0,
        producer_id: int = PID,
        transactional: bool = True,
        version: int = V1,
        flags: int = NAMED,
        fault: str = "",
    ) -> Answer:
        batch = batch_of(
            (bytes(TOO_LARGE_BYTES),) if fault == "too large" else (b"value",),
            timestamp_ms=2 * NOW_MS if fault == "too late" else NOW_MS,
            attributes=TRANSACTIONAL if transactional else 0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        if fault == "damaged":
            batch = memoryview(bytes(batch[:-1]) + bytes([batch[-1] ^ 1]))
        request = produce_request(1, 0, 0, INCARNATION, flags, -1, 0, len(batch), version, 1000, 0)
        answer = produce(self.partition, request, batch, 0)
        assert answer is not None
        if not answer[ERROR]:
            self.partition.publish()
        return answer

    def produce(
        self,
        sequence: int,
        *,
        epoch: int = 0,
        producer_id: int = PID,
        transactional: bool = True,
        version: int = V1,
        flags: int = NAMED,
        fault: str = "",
    ) -> tuple[int, int]:
        """(error, reason)"""
        answer = self.answer(
            sequence,
            epoch=epoch,
            producer_id=producer_id,
            transactional=transactional,
            version=version,
            flags=flags,
            fault=fault,
        )
        return answer[ERROR], answer[REJECT_REASON] if answer[ERROR] else 0

    def permit(self, *, epoch: int = 0, producer_id: int = PID) -> None:
        request = permit_request(
            request_id=1, row=0, incarnation=INCARNATION, producer_id=producer_id, producer_epoch=epoch
        )
        assert permit_transaction(self.partition, request)[ERROR] == NONE

    def end(self, *, epoch: int = 0, commit: bool = True, version: int = 1, coordinator: int = 0) -> int:
        request = marker_request(
            request_id=1,
            row=0,
            incarnation=INCARNATION,
            producer_id=PID,
            producer_epoch=epoch,
            coordinator_epoch=coordinator,
            commit=commit,
            transaction_version=version,
            timeout_ms=1000,
        )
        answer = write_marker(self.partition, request, now_ms=NOW_MS)
        if not answer[ERROR]:
            self.partition.publish()
        return answer[ERROR]

    def lead_again(self) -> None:
        """Another life of the worker leads, with what the log says."""
        self.partition.log.close(clean=False)
        self.partition = leader(self.path, self.table, 0, epoch=1, records=0, replicas=(0,))

    @property
    def log_end(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def last_stable(self) -> int:
        return self.table.cells[self.table.at(0) + LAST_STABLE_OFFSET]


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


NOT_PERMITTED: Final = NO_TRANSACTION, int(RejectReason.NOT_PERMITTED)
APPENDED: Final = NONE, 0


# Permits


@pytest.mark.parametrize("version", [V1, TV2])
def test_batch_without_a_permit_is_refused_so_that_the_network_process_asks(
    owner: Owner, version: int
) -> None:
    assert owner.produce(0, version=version) == NOT_PERMITTED
    assert owner.log_end == 0
    assert len(owner.partition.log.producers) == 0, "nothing is remembered of its producer"
    owner.permit()
    assert owner.produce(0, version=version) == APPENDED
    assert owner.produce(1, version=version) == APPENDED


@pytest.mark.parametrize("version", [V1, TV2])
def test_request_that_names_no_transactional_id_writes_into_no_transaction(
    owner: Owner, version: int
) -> None:
    not_named = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), 0
    assert owner.produce(0, version=version, flags=0) == not_named
    owner.permit()
    assert owner.produce(0, version=version, flags=0) == not_named
    assert owner.produce(0, version=version) == APPENDED
    assert owner.produce(1, version=version, flags=0) == not_named
    assert owner.produce(0, version=version, flags=0) == not_named, (
        "nor is a repeated batch told where it lies"
    )
    assert owner.log_end == 1
    assert owner.produce(0, producer_id=PID + 1, transactional=False, flags=0) == APPENDED


@pytest.mark.parametrize("version", [V1, TV2])
def test_permit_does_not_count_while_the_transactional_id_is_not_proved(owner: Owner, version: int) -> None:
    owner.permit()
    assert owner.produce(0, version=version, flags=UNPROVED) == NOT_PERMITTED
    assert owner.produce(0, version=version) == APPENDED, "it is not used up"
    assert owner.produce(1, version=version, flags=UNPROVED) == APPENDED, "the transaction is open here"
    assert owner.produce(1, version=version, flags=UNPROVED) == APPENDED, "and knows its batches"
    assert owner.log_end == 2


def test_batch_that_repeats_one_of_an_ended_transaction_needs_a_permit_like_any_other(owner: Owner) -> None:
    owner.permit()
    assert owner.produce(0) == APPENDED
    assert owner.produce(1) == APPENDED
    assert owner.end() == NONE
    assert owner.produce(0) == NOT_PERMITTED
    owner.permit()
    repeated = owner.answer(0)
    assert (repeated[ERROR], repeated[FLAGS], repeated[PRODUCED_OFFSET]) == (NONE, ResponseFlag.DUPLICATE, 0)
    # The permit is still there, and the repeated batch's sequence number is not due.
    assert owner.produce(2) == APPENDED


def test_refusal_of_the_log_tells_the_log_start_and_no_other_does(owner: Owner) -> None:
    def log_start(sequence: int, error: int, *, epoch: int = 0, transactional: bool = True) -> int:
        answer = owner.answer(sequence, epoch=epoch, transactional=transactional)
        assert answer[ERROR] == error
        return answer[ANSWER_LOG_START]

    owner.permit(epoch=3)
    assert log_start(0, NO_TRANSACTION, epoch=4) == -1, "not permitted: the coordinator decides"
    owner.permit(epoch=4)
    assert log_start(0, NONE, epoch=4) == 0
    assert log_start(7, OUT_OF_ORDER, epoch=4) == 0
    assert log_start(1, NO_TRANSACTION, epoch=4, transactional=False) == 0
    assert log_start(1, FENCED, epoch=3) == -1
    assert log_start(1, FENCED, epoch=3, transactional=False) == 0


def test_first_batch_uses_the_permit_up(owner: Owner) -> None:
    owner.permit()
    assert owner.produce(0) == APPENDED
    assert len(owner.partition.log.permits) == 0


def test_marker_takes_an_unused_permit_away(owner: Owner) -> None:
    owner.permit()
    assert owner.end(commit=False) == NONE
    assert owner.produce(0) == NOT_PERMITTED


def test_refused_marker_leaves_the_permit(owner: Owner) -> None:
    assert owner.end(epoch=3, coordinator=5) == NONE
    owner.permit(epoch=4)
    assert owner.end(epoch=2, coordinator=5) == FENCED
    assert owner.end(epoch=4, coordinator=4) == ZOMBIE_COORDINATOR
    assert owner.produce(0, epoch=4) == APPENDED


def test_permit_of_another_epoch_does_not_count(owner: Owner) -> None:
    owner.permit(epoch=1)
    assert owner.produce(0, epoch=0) == NOT_PERMITTED
    assert owner.produce(0, epoch=2) == NOT_PERMITTED
    owner.permit(epoch=1)
    assert owner.produce(0, epoch=1) == NOT_PERMITTED, "epoch 2 is known to be newer"
    owner.permit(epoch=2)
    assert owner.produce(0, epoch=2) == APPENDED


def test_open_transaction_of_an_older_epoch_does_not_admit_a_newer_one(owner: Owner) -> None:
    owner.permit(epoch=0)
    assert owner.produce(0, epoch=0) == APPENDED
    assert owner.produce(0, epoch=1) == NOT_PERMITTED


def test_permits_go_with_the_worker_and_the_open_transaction_stays(owner: Owner) -> None:
    owner.permit()
    owner.permit(producer_id=8)
    assert owner.produce(0) == APPENDED
    owner.lead_again()
    assert owner.produce(1) == APPENDED
    assert owner.produce(0, producer_id=8) == NOT_PERMITTED


def test_permits_are_bounded_and_the_oldest_one_goes(owner: Owner) -> None:
    for producer_id in range(PERMITS_MAX + 1):
        owner.permit(producer_id=producer_id)
    assert len(owner.partition.log.permits) == PERMITS_MAX
    assert owner.produce(0, producer_id=0) == NOT_PERMITTED
    assert owner.produce(0, producer_id=PERMITS_MAX) == APPENDED


def test_refused_batches_of_many_producers_are_bounded_too(owner: Owner) -> None:
    for producer_id in range(PERMITS_MAX + 50):
        owner.partition.log.permits.refused(producer_id, 0, 0)
    assert len(owner.partition.log.permits) == PERMITS_MAX


def test_coordinators_batch_of_a_transaction_needs_a_permit_too(owner: Owner) -> None:
    assert owner.produce(-1, flags=COORDINATOR) == NOT_PERMITTED
    owner.permit()
    assert owner.produce(-1, flags=COORDINATOR) == APPENDED
    assert owner.produce(-1, flags=COORDINATOR) == APPENDED
    assert owner.last_stable == 0


def test_verified_batch_needs_no_permit(owner: Owner) -> None:
    assert owner.produce(0, flags=VERIFIED) == APPENDED


@pytest.mark.parametrize("version", [V1, TV2])
@pytest.mark.parametrize("fault", FAULTS)
def test_transaction_is_looked_at_before_what_else_is_wrong_with_a_batch(
    owner: Owner, fault: str, version: int
) -> None:
    """Kafka asks the coordinator before it reads the batch."""
    own = FAULTS[fault]
    unnamed = NOT_NAMED, 0

    def told(sequence: int, **said: Any) -> int | tuple[int, int]:
        error, reason = owner.produce(sequence, version=version, fault=fault, **said)
        return error if error == own else (error, reason)

    assert told(0) == NOT_PERMITTED
    assert told(0, flags=0) == unnamed
    assert told(0, flags=0, producer_id=-1, epoch=-1) == unnamed
    owner.permit(epoch=1)
    assert told(0, epoch=1, flags=UNPROVED) == NOT_PERMITTED
    assert told(0, epoch=1) == own
    assert told(0, epoch=1, flags=0, transactional=False) == own
    assert owner.produce(0, epoch=1, version=version) == APPENDED
    assert told(1, epoch=1) == own
    assert told(1, epoch=1, flags=UNPROVED) == own, "the transaction is open here"
    assert told(1, epoch=0) == (FENCED, 0)
    assert told(1, epoch=1, flags=0) == unnamed
    assert told(0, epoch=2) == NOT_PERMITTED
    assert owner.log_end == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_later_batch_is_not_first_while_an_earlier_one_was_wrong_in_itself(owner: Owner, fault: str) -> None:
    owner.permit()
    assert owner.produce(0, fault=fault)[0] == FAULTS[fault]
    assert owner.produce(1) == (OUT_OF_ORDER, 0)
    assert owner.produce(0) == APPENDED
    assert owner.produce(1) == APPENDED


def test_damaged_batch_says_nothing_of_what_is_due(owner: Owner) -> None:
    """Its epoch and its sequence number may be what is damaged."""
    owner.permit(epoch=1)
    assert owner.produce(0, epoch=2, fault="damaged") == NOT_PERMITTED
    assert owner.produce(3, epoch=1) == APPENDED, "epoch 2 is not known"


def test_coordinators_batch_that_is_too_large_is_told_so(owner: Owner) -> None:
    assert owner.produce(-1, flags=COORDINATOR, fault="too large") == (FAULTS["too large"], 0)


# Epochs and sequence numbers


def test_fenced_epoch_is_never_asked_about(owner: Owner) -> None:
    owner.permit(epoch=3)
    assert owner.produce(0, epoch=3) == APPENDED
    assert owner.end(epoch=3) == NONE
    assert owner.produce(0, epoch=2) == (FENCED, 0)
    assert owner.produce(0, epoch=2, flags=VERIFIED) == (FENCED, 0)
    assert owner.produce(-1, epoch=2, flags=COORDINATOR) == (FENCED, 0)


def test_v2_producer_of_whom_nothing_is_known_begins_at_zero_and_a_v1_producer_anywhere(owner: Owner) -> None:
    owner.permit()
    assert owner.produce(5, version=TV2) == (OUT_OF_ORDER, 0)
    assert owner.produce(5, version=V1) == APPENDED
    owner.permit(producer_id=8)
    assert owner.produce(0, producer_id=8, version=TV2) == APPENDED


def test_v2_producer_known_by_a_marker_alone_begins_at_zero(owner: Owner) -> None:
    assert owner.end(epoch=1, version=2) == NONE
    owner.permit(epoch=1)
    assert owner.produce(5, epoch=1, version=TV2) == (OUT_OF_ORDER, 0)
    assert owner.produce(0, epoch=1, version=TV2) == APPENDED


def test_idempotent_producer_without_transactions_begins_anywhere_in_each_version(owner: Owner) -> None:
    assert owner.produce(5, transactional=False, version=TV2) == APPENDED
    assert owner.produce(9, producer_id=8, transactional=False, version=V1) == APPENDED


def test_later_batch_is_not_first_while_an_earlier_one_was_refused(owner: Owner) -> None:
    assert owner.produce(0) == NOT_PERMITTED
    owner.permit()
    assert owner.produce(3) == (OUT_OF_ORDER, 0)
    assert owner.produce(0) == APPENDED
    assert owner.produce(1) == APPENDED


def test_new_epoch_begins_without_what_was_refused_of_the_old_one(owner: Owner) -> None:
    assert owner.produce(0, epoch=0) == NOT_PERMITTED
    assert owner.produce(4, epoch=1) == NOT_PERMITTED
    owner.permit(epoch=1)
    assert owner.produce(4, epoch=1) == APPENDED


def test_batch_refused_before_the_marker_is_still_due_first_after_it_in_version_2(owner: Owner) -> None:
    owner.permit(epoch=0)
    assert owner.produce(0, epoch=0, version=TV2) == APPENDED
    assert owner.produce(0, epoch=1, version=TV2) == NOT_PERMITTED, "the next transaction, before the marker"
    assert owner.end(epoch=1, version=2) == NONE
    owner.permit(epoch=1)
    assert owner.produce(1, epoch=1, version=TV2) == (OUT_OF_ORDER, 0)
    assert owner.produce(0, epoch=1, version=TV2) == APPENDED


def test_refused_batch_disturbs_nothing_that_is_remembered(owner: Owner) -> None:
    owner.permit()
    assert owner.produce(0) == APPENDED
    assert owner.produce(1) == APPENDED
    assert owner.end() == NONE
    before = owner.partition.log.producers.encode_snapshot()
    assert owner.produce(2) == NOT_PERMITTED
    assert owner.produce(0, epoch=4) == NOT_PERMITTED
    assert owner.partition.log.producers.encode_snapshot() == before
    owner.permit(epoch=0)
    assert owner.produce(2) == NOT_PERMITTED, "epoch 4 is known to be newer"


def test_plain_batch_inside_an_open_transaction_is_refused_without_a_question(owner: Owner) -> None:
    owner.permit()
    assert owner.produce(0) == APPENDED
    assert owner.produce(1, transactional=False) == (NO_TRANSACTION, 0)
    assert owner.produce(1) == APPENDED


# Markers


@pytest.mark.parametrize("commit", [True, False])
def test_v1_marker_has_the_epoch_of_the_data(owner: Owner, commit: bool) -> None:
    owner.permit(epoch=1)
    assert owner.produce(0, epoch=1) == APPENDED
    assert owner.end(epoch=0, commit=commit) == FENCED
    assert owner.last_stable == 0
    assert owner.end(epoch=1, commit=commit) == NONE
    assert owner.last_stable == 2
    assert owner.end(epoch=1, commit=commit) == NONE, "sent again"


def test_v2_marker_has_the_next_epoch(owner: Owner) -> None:
    owner.permit(epoch=1)
    assert owner.produce(0, epoch=1) == APPENDED
    assert owner.end(epoch=1, version=2) == FENCED
    assert owner.end(epoch=0, version=2) == FENCED
    assert owner.last_stable == 0
    assert owner.end(epoch=2, version=2) == NONE
    assert owner.last_stable == 2


def test_v2_marker_sent_again_is_accepted_until_the_next_transaction_is_open(owner: Owner) -> None:
    """KAFKA-19999."""
    owner.permit(epoch=1)
    assert owner.produce(0, epoch=1) == APPENDED
    assert owner.end(epoch=2, version=2) == NONE
    assert owner.end(epoch=2, version=2) == NONE
    owner.permit(epoch=2)
    assert owner.produce(0, epoch=2, version=TV2) == APPENDED
    assert owner.end(epoch=2, version=2) == FENCED
    assert owner.last_stable == 3


def test_transaction_in_the_last_epoch_can_be_ended(owner: Owner) -> None:
    owner.permit(epoch=32767)
    assert owner.produce(0, epoch=32767) == APPENDED
    assert owner.end(epoch=32767, version=2) == NONE
    assert owner.last_stable == 2


def test_marker_of_an_older_coordinator_is_refused(owner: Owner) -> None:
    assert owner.end(coordinator=5) == NONE
    assert owner.end(coordinator=4) == ZOMBIE_COORDINATOR
    assert owner.end(epoch=1, version=2, coordinator=4) == ZOMBIE_COORDINATOR
    assert owner.end(coordinator=6) == NONE


def test_marker_without_data_changes_no_stable_offset_and_indexes_nothing(owner: Owner) -> None:
    owner.permit(producer_id=8)
    assert owner.produce(0, producer_id=8) == APPENDED
    assert owner.end(commit=False) == NONE
    assert owner.last_stable == 0
    assert owner.partition.log.aborted_transactions(0, upper_bound=99) == []
    assert not list(owner.partition.log.directory.glob("*.txnindex"))


def test_marker_needs_as_many_replicas_in_sync_as_a_record(owner: Owner) -> None:
    owner.partition.min_insync_replicas = 2
    assert owner.end() == int(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert owner.log_end == 0


# What is shown


def test_newest_timestamp_is_not_told_of_a_record_of_an_open_transaction(owner: Owner) -> None:
    """Kafka answers neither of another record: the one with the largest timestamp is not to be read."""
    assert owner.produce(0, producer_id=3, transactional=False) == APPENDED
    owner.permit()
    batch = batch_of(
        timestamp_ms=NOW_MS + 5,
        attributes=TRANSACTIONAL,
        producer_id=PID,
        producer_epoch=0,
        base_sequence=0,
    )
    owner.partition.log.append(batch, leader_epoch=0)
    owner.partition.publish()
    newest = int(RequestFlag.MAX_TIMESTAMP)

    def told(flags: int) -> tuple[int, int]:
        request = partition_request(
            Op.LIST_OFFSETS, request_id=1, row=0, incarnation=INCARNATION, flags=flags
        )
        answer = list_offsets(owner.partition, request)
        return answer[FOUND_OFFSET], answer[FOUND_TIMESTAMP_MS]

    assert told(newest) == (1, NOW_MS + 5)
    assert told(newest | int(RequestFlag.READ_COMMITTED)) == (-1, -1)
    assert owner.end() == NONE
    assert told(newest | int(RequestFlag.READ_COMMITTED)) == (1, NOW_MS + 5)


def test_open_transaction_is_described_by_its_first_offset(owner: Owner) -> None:
    assert owner.produce(0, producer_id=3, transactional=False) == APPENDED
    owner.permit(epoch=2)
    assert owner.produce(0, epoch=2) == APPENDED
    assert owner.produce(1, epoch=2) == APPENDED
    asked = permit_request(request_id=1, row=0, incarnation=INCARNATION, producer_id=0, producer_epoch=0)
    wants = list(asked)
    wants[11] = PID
    found = describe_producer(owner.partition, tuple(wants))
    assert (found[6], found[7], found[8], found[9], found[12]) == (PID, NOW_MS, 1, 1, 2)
    assert owner.end(epoch=2, coordinator=9) == NONE
    found = describe_producer(owner.partition, tuple(wants))
    assert (found[6], found[8], found[10]) == (PID, -1, 9)
