"""What is known of one partition of a Fetch: its owner's answer, read by what it means."""

from __future__ import annotations

from uuid import UUID

import pytest

from appliance.channels.request_channel import Op, ResponseFlag
from appliance.protocol.errors import ErrorCode
from appliance.protocol.fetch_response import AbortedTransaction, DivergingEpoch
from appliance.requests.fetch_session import SessionPartition
from appliance.requests.log_handlers.fetch_item import FetchItem
from appliance.requests.topic_routes import PartitionRoute

ROUTE = PartitionRoute("t", UUID(int=5), 3, 7, 9, 0, 4, None, 0)


def item() -> FetchItem:
    return FetchItem(SessionPartition("t", 3, 5, 1000), ROUTE)


def answer(*, op: Op = Op.FETCH, flags: int = 0, error: int = 0) -> tuple[int, ...]:
    """Segment or end offset 100, high watermark 120, log start 80, last stable offset 110, epoch 2."""
    return (int(op), flags, error, 1, 0, 7, 100, 120, 80, 4096, 500, 60, 2, 110)


@pytest.mark.parametrize("directory", [0, 1, 63])
@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("has_aborted", [False, True])
def test_an_answer_says_where_the_records_lie(directory: int, is_older: bool, has_aborted: bool) -> None:
    told = item()
    flags = directory | is_older * int(ResponseFlag.OLDER_SEGMENT) | has_aborted * int(ResponseFlag.ABORTED)
    told.answered(answer(flags=flags))
    assert (told.directory, told.segment, told.position) == (directory, 100, 4096)
    assert (told.length_bytes, told.first_batch_bytes) == (500, 60)
    assert (told.on_older_segment, told.has_aborted) == (is_older, has_aborted)
    assert (told.high_watermark, told.log_start, told.last_stable_offset) == (120, 80, 110)
    assert told.diverging is None


def test_an_error_brings_offsets_and_no_records() -> None:
    told = item()
    told.answered(answer(error=int(ErrorCode.OFFSET_OUT_OF_RANGE)))
    assert (told.error, told.length_bytes) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
    fetched = told.fetched(read_committed=False)
    assert fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (fetched.high_watermark, fetched.log_start_offset, fetched.last_stable_offset) == (120, 80, 110)


def test_the_end_of_an_epoch_brings_no_records_and_says_where_histories_part() -> None:
    told = item()
    told.answered(answer(op=Op.EPOCH_END))
    fetched = told.fetched(read_committed=False)
    assert fetched.diverging_epoch == DivergingEpoch(2, 100)
    assert (fetched.error_code, fetched.records_length) == (0, 0)


def test_a_partition_without_a_route_is_told_its_error_and_no_offsets() -> None:
    told = FetchItem(SessionPartition("t", 3, 5, 1000), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    fetched = told.fetched(read_committed=True)
    assert told.route is None
    assert fetched.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (-1, -1, -1)


def test_aborted_transactions_are_told_to_readers_of_committed_records_only() -> None:
    told = item()
    told.aborted = [AbortedTransaction(7, 90)]
    assert told.fetched(read_committed=True).aborted_transactions == [(7, 90)]
    assert told.fetched(read_committed=False).aborted_transactions is None
    assert item().fetched(read_committed=True).aborted_transactions == ()
