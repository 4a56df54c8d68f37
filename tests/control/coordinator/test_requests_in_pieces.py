"""Long requests of offsets in pieces: the outcome is the same, and no piece is more than some hundred elements."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar
from uuid import UUID

import pytest

from appliance.control.coordinator.group.effects import Topic
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.offsets.offset_commit import CommitPlanner, LongPlan, plan_in_pieces
from appliance.control.coordinator.offsets.offset_delete import plan_delete, settle
from appliance.control.coordinator.offsets.offset_fetch import fetch_offsets, fetch_offsets_in_pieces
from appliance.control.coordinator.pieces import PIECE
from appliance.errors import MalformedFrame
from appliance.protocol import offset_commit
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.errors import ErrorCode
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import encode_request
from tests.control.coordinator.test_offset_requests import NOW_MS, KnownTopics

T = TypeVar("T")

COMMIT_VERSIONS = (2, 5, 6, 8, 9, 10)
SIZES = [(), (0, 0), (1, 2, 3), (255, 1), (256,), (257, 256, 2), (1000, 0, 0, 700)]
WITHOUT_LIMIT = 1 << 40


def run(steps: Generator[None, None, T]) -> tuple[T, int]:
    """What the generator returns, and how often it has yielded."""
    yields = 0
    while True:
        try:
            next(steps)
            yields += 1
        except StopIteration as ended:
            value: T = ended.value
            return value, yields


def wide(partitions: int = 2000) -> KnownTopics:
    return KnownTopics({f"t{n}": Topic(f"t{n}", UUID(int=n + 1), partitions) for n in range(4)})


def commit_of(*sizes: int) -> OffsetCommitRequest:
    """A commit of so many partitions of t0, t1, … ; the last topic of four is not there."""
    return OffsetCommitRequest(
        "g",
        topics=tuple(
            OffsetCommitTopic(
                f"t{n}" if n < 3 else "missing",
                UUID(int=n + 1 if n < 3 else 99),
                tuple(
                    OffsetCommitPartition(index, index * 7, "note" if index % 5 else "")
                    for index in range(size)
                ),
            )
            for n, size in enumerate(sizes)
        ),
    )


def body_of(request: OffsetCommitRequest, version: int) -> bytes:
    frame = encode_request(ApiKey.OFFSET_COMMIT, version, request, 7)
    return frame[parse_request_header(memoryview(frame), 4, len(frame)).body_position :]


def parsed(request: OffsetCommitRequest, version: int) -> offset_commit.CommitRequest:
    body = body_of(request, version)
    return offset_commit.parse_offset_commit(memoryview(body), 0, len(body), version)


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_commit_parsed_in_pieces_is_the_one_parsed_at_once(version: int, sizes: tuple[int, ...]) -> None:
    whole = parsed(commit_of(*sizes), version)
    pieces, yields = run(
        offset_commit.parse_offset_commit_in_pieces(body_of(commit_of(*sizes), version), version)
    )
    assert {name: getattr(pieces, name) for name in whole.__slots__} == {
        name: getattr(whole, name) for name in whole.__slots__
    }
    assert yields >= sum(sizes) // offset_commit.PIECE - len(sizes)


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_commit_that_is_cut_anywhere_is_refused_in_pieces_too(version: int) -> None:
    body = body_of(commit_of(300, 2), version)
    for end in range(0, len(body), 97):
        with pytest.raises(MalformedFrame):
            run(offset_commit.parse_offset_commit_in_pieces(body[:end], version))


@pytest.mark.parametrize("sizes", SIZES)
def test_commit_planned_and_answered_in_pieces_is_the_one_planned_at_once(sizes: tuple[int, ...]) -> None:
    request = parsed(commit_of(*sizes), 9)
    whole = CommitPlanner(wide(), metadata_max=4).plan(request, NOW_MS)
    plan = LongPlan(WITHOUT_LIMIT)
    run(plan_in_pieces(CommitPlanner(wide(), metadata_max=4), request, NOW_MS, plan))
    made = plan.made()
    assert not plan.is_too_large
    assert made.records == whole.records
    assert made.errors == whole.errors
    assert [each for each in made.puts if each[1]] == [each for each in whole.puts if each[1]]
    for version in COMMIT_VERSIONS[:-1]:
        frame, _ = run(offset_commit.encode_offset_commit_response_in_pieces(version, 7, made.errors))
        assert frame == offset_commit.encode_offset_commit_response(version, 7, whole.errors)
    everywhere, _ = run(offset_commit.every_partition_in_pieces(request, 16))
    assert everywhere == offset_commit.every_partition(request, 16)


def test_commit_of_more_than_a_batch_may_hold_keeps_no_records() -> None:
    request = parsed(commit_of(1000, 5), 9)
    plan = LongPlan(bytes_max=20_000)
    run(plan_in_pieces(CommitPlanner(wide(), metadata_max=4), request, NOW_MS, plan))
    assert plan.is_too_large
    assert not plan.records
    assert sum(len(results) for _, results in plan.errors) == 1005
    version, failed = 9, int(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    told, _ = run(
        offset_commit.encode_offset_commit_response_in_pieces(version, 7, plan.errors, failed=failed)
    )
    assert told == offset_commit.encode_offset_commit_response(
        version, 7, [(topic, [(index, failed) for index, _ in each]) for topic, each in plan.errors]
    )


def kept(topics: KnownTopics, partitions: int = 1500) -> OffsetBook:
    """Every third partition of t0, t1, t2 has an offset."""
    book = OffsetBook()
    commit = parsed(commit_of(partitions, partitions, partitions), 9)
    plan = CommitPlanner(topics, metadata_max=4).plan(commit, NOW_MS)
    for topic, values in plan.puts:
        book.put_all("g", topic, values[::3])
    return book


def asked(version: int, *names: str, partitions: int, group: str = "g") -> OffsetFetchRequest:
    topics = tuple(
        OffsetFetchTopic(
            "" if version >= 10 else name, UUID(int=int(name[1:]) + 1), tuple(range(-1, partitions))
        )
        for name in names
    )
    if version < 8:
        return OffsetFetchRequest(group, topics)
    return OffsetFetchRequest(groups=(OffsetFetchGroup(group, topics), OffsetFetchGroup("other", None)))


@pytest.mark.parametrize("error", [0, int(ErrorCode.NOT_COORDINATOR)])
@pytest.mark.parametrize("version", [1, 2, 7, 8, 9, 10])
def test_offsets_fetched_in_pieces_are_those_fetched_at_once(version: int, error: int) -> None:
    topics = wide()
    book = kept(topics)
    ways: dict[str, Any] = {"topics": topics, "check": lambda _: error, "book_of": lambda _: book}
    for request in (
        asked(version, "t0", "t1", "t9", partitions=1000),
        asked(version, "t2", partitions=3),
        all_of_the_group(version),
    ):
        fetched = fetch_offsets(request, version, **ways)
        response, _ = run(fetch_offsets_in_pieces(request, version, **ways))
        assert response == fetched.make(tuple(fetched.elements))
    request = asked(version, "t0", "t1", partitions=1000)
    _, yields = run(fetch_offsets_in_pieces(request, version, **ways))
    assert yields >= 2000 // PIECE - 2 or (error and version >= 2)


def all_of_the_group(version: int) -> OffsetFetchRequest:
    """A request for all offsets, which v1 does not have."""
    if version < 2:
        return OffsetFetchRequest("g", ())
    return OffsetFetchRequest("g", None, groups=(OffsetFetchGroup("g"),))


def deletion(*topics: str, partitions: int = 500) -> OffsetDeleteRequest:
    each = tuple(OffsetDeletePartition(index % partitions) for index in range(2 * partitions))
    return OffsetDeleteRequest("g", tuple(OffsetDeleteTopic(name, each) for name in topics))


def test_offsets_are_deleted_in_pieces_and_each_once() -> None:
    topics = wide()
    check = {"t0": 0, "t1": 86, "t2": 0}.__getitem__
    planned, yields = run(
        plan_delete(
            deletion("t0", "t1", "missing", "t2"), topics=topics, book=kept(topics), check_topic=check
        )
    )
    records, response = settle(planned, check)
    assert len(records) == len({record.key for record in records}) == 2 * 167
    assert yields >= 4 * 1000 // PIECE
    errors = [{each.error_code for each in topic.partitions} for topic in response.topics]
    assert errors == [{0}, {86}, {3}, {0}]


def test_offsets_of_a_topic_that_a_member_subscribes_to_meanwhile_stay() -> None:
    topics = wide()
    subscribed: set[str] = set()
    planned, _ = run(
        plan_delete(
            deletion("t0", "t1"),
            topics=topics,
            book=kept(topics),
            check_topic=lambda topic: 86 * (topic in subscribed),
        )
    )
    subscribed.add("t1")
    records, response = settle(planned, lambda topic: 86 * (topic in subscribed))
    assert len(records) == 167
    assert {each.error_code for each in response.topics[0].partitions} == {0}
    assert {each.error_code for each in response.topics[1].partitions} == {86}
