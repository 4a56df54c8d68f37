"""What commits, fetches and deletions of offsets come to, without a log and without a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from appliance.control.coordinator.group.effects import Topic
from appliance.control.coordinator.offsets.expiry import expired
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.offsets.offset_commit import CommitPlanner, failed_commit
from appliance.control.coordinator.offsets.offset_delete import Deleted, plan_delete, settle
from appliance.control.coordinator.offsets.offset_fetch import fetch_offsets
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.offset_commit import CommitRequest
from appliance.protocol.records.offset_records import CommittedOffset, encode_value, parse_key

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)


@dataclass
class KnownTopics:
    """Stands where the metadata image would."""

    topics: dict[str, Topic] = field(default_factory=lambda: {"t": Topic("t", OLD_ID, 4)})

    def by_name(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def names(self) -> Sequence[str]:
        return list(self.topics)

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        return {}


def deleted(request: OffsetDeleteRequest, book: OffsetBook, *, check_topic: Callable[[str], int]) -> Deleted:
    """What the request comes to where nothing changes meanwhile."""
    steps = plan_delete(request, topics=KnownTopics(), book=book, check_topic=check_topic)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return settle(ended.value, check_topic)


def commit(topic: str | UUID, *partitions: tuple[int, int, str]) -> CommitRequest:
    """A commit of (index, offset, metadata)."""
    each = [(index, offset, 3, text.encode()) for index, offset, text in partitions]
    return CommitRequest("g", [(topic, each)])


def planned(*requests: CommitRequest, topics: KnownTopics | None = None) -> tuple[list[int], OffsetBook]:
    """The errors by partition, and a book after everything was committed."""
    errors: list[int] = []
    book = OffsetBook()
    planner = CommitPlanner(topics or KnownTopics(), metadata_max=10)
    for request in requests:
        plan = planner.plan(request, NOW_MS)
        keyed = {parse_key(key): value for key, value in plan.records}
        assert keyed == {("g", topic, index): value for topic, values in plan.puts for index, value in values}
        for key, value in plan.records:
            book.apply(key, value)
        errors += [error for _, partitions in plan.errors for _, error in partitions]
    return errors, book


def fetched(
    book: OffsetBook, *topics: OffsetFetchTopic, version: int = 9, known: KnownTopics | None = None
) -> OffsetFetchResponse:
    request = OffsetFetchRequest(groups=(OffsetFetchGroup("g", topics or None),))
    elements, make = fetch_offsets(
        request, version, topics=known or KnownTopics(), check=lambda _: 0, book_of=lambda _: book
    )
    return make(tuple(elements))


def test_commit_takes_what_is_there_and_refuses_the_rest_one_by_one() -> None:
    errors, book = planned(
        commit("t", (0, 5, "note"), (4, 5, ""), (-1, 5, ""), (1, 5, "x" * 11), (2, 5, ""), (3, 5, "é" * 10)),
        commit("nowhere", (0, 5, "")),
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == [0, unknown, unknown, ErrorCode.OFFSET_METADATA_TOO_LARGE, 0, 0, unknown]
    assert sorted(book.of("g")["t"]) == [0, 2, 3]


def test_commit_by_topic_id_of_no_topic_is_unknown_topic_id() -> None:
    errors, book = planned(commit(NEW_ID, (0, 5, "")))
    assert errors == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert not book.groups()
    errors, book = planned(commit(OLD_ID, (0, 5, "")))
    assert errors == [0]
    assert book.value("g", "t", 0)


def test_commit_is_written_as_its_record_would_be_one_by_one() -> None:
    _, book = planned(commit("t", (0, 5, "note"), (1, 6, "")))
    for index, offset, text in ((0, 5, "note"), (1, 6, "")):
        one = CommittedOffset(offset, 3, text, NOW_MS, topic_id=OLD_ID)
        assert book.value("g", "t", index) == encode_value(one)


def test_append_that_failed_is_told_for_each_partition_that_had_been_taken() -> None:
    plan = CommitPlanner(KnownTopics(), metadata_max=10).plan(commit("t", (0, 1, ""), (9, 1, "")), NOW_MS)
    failed = failed_commit(plan.errors, ErrorCode.NOT_COORDINATOR)
    assert failed == [("t", [(0, ErrorCode.NOT_COORDINATOR), (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)])]


def test_fetch_tells_offset_epoch_and_metadata_and_minus_one_for_what_was_never_committed() -> None:
    _, book = planned(commit("t", (1, 7, "note")))
    (group,) = fetched(book, OffsetFetchTopic("t", partition_indexes=(0, 1))).groups
    told = [
        (p.partition_index, p.committed_offset, p.metadata, p.committed_leader_epoch, p.error_code)
        for p in group.topics[0].partitions
    ]
    assert told == [(0, -1, "", -1, 0), (1, 7, "note", 3, 0)]


def test_fetch_tells_the_time_of_a_commit_to_those_who_ask_for_it() -> None:
    _, book = planned(commit("t", (1, 7, "note")))
    for asked in (False, True):
        for topics in (None, (OffsetFetchTopic("t", partition_indexes=(1,)),)):
            request = OffsetFetchRequest(groups=(OffsetFetchGroup("g", topics),), with_commit_times=asked)
            elements, make = fetch_offsets(
                request, 9, topics=KnownTopics(), check=lambda _: 0, book_of=lambda _: book
            )
            ((topic,),) = (group.topics for group in make(tuple(elements)).groups)
            assert [each.commit_time_ms for each in topic.partitions] == [NOW_MS if asked else -1]


def test_fetch_of_all_lists_what_was_committed_by_name_or_by_id() -> None:
    _, book = planned(commit("t", (3, 1, ""), (1, 2, "")))
    (group,) = fetched(book).groups
    assert [(topic.name, [p.partition_index for p in topic.partitions]) for topic in group.topics] == [
        ("t", [1, 3])
    ]
    (group,) = fetched(book, version=10).groups
    assert [topic.topic_id for topic in group.topics] == [OLD_ID]


def test_all_offsets_of_a_group_are_told_once_however_often_they_are_asked_for() -> None:
    _, book = planned(commit("t", (3, 1, "")))
    some = OffsetFetchGroup("g", (OffsetFetchTopic("t", partition_indexes=(3,)),))
    wanted = (OffsetFetchGroup("g", None), some, OffsetFetchGroup("h", None))
    elements, make = fetch_offsets(
        OffsetFetchRequest(groups=wanted * 1_000),
        9,
        topics=KnownTopics(),
        check=lambda _: 0,
        book_of=lambda group: book if group == "g" else None,
    )
    assert [group.group_id for group in make(tuple(elements)).groups] == ["g", "g", "h", *["g"] * 999]


def test_new_topic_of_the_same_name_does_not_inherit_an_offset() -> None:
    _, book = planned(commit("t", (1, 7, "")))
    again = KnownTopics({"t": Topic("t", NEW_ID, 4)})
    (group,) = fetched(book, OffsetFetchTopic("t", partition_indexes=(1,)), known=again).groups
    assert group.topics[0].partitions[0].committed_offset == -1
    assert not fetched(book, known=again).groups[0].topics


def test_error_of_a_group_is_told_where_its_version_has_a_place_for_it() -> None:
    topics = (OffsetFetchTopic("t", partition_indexes=(0, 1)),)
    error = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    for version, in_partitions in ((1, True), (2, False), (7, False)):
        elements, make = fetch_offsets(
            OffsetFetchRequest("g", topics),
            version,
            topics=KnownTopics(),
            check=lambda _: error,
            book_of=lambda _: None,
        )
        response = make(tuple(elements))
        told = [p.error_code for topic in response.topics for p in topic.partitions]
        assert told == ([error, error] if in_partitions else [])
        assert response.error_code == error


def test_deletion_spares_what_is_subscribed_and_what_is_not_there() -> None:
    _, book = planned(commit("t", (0, 1, ""), (1, 1, "")))
    request = OffsetDeleteRequest(
        "g",
        (
            OffsetDeleteTopic(
                "t", (OffsetDeletePartition(0), OffsetDeletePartition(2), OffsetDeletePartition(7))
            ),
            OffsetDeleteTopic("u", (OffsetDeletePartition(0),)),
        ),
    )
    records, response = deleted(request, book, check_topic=lambda _: 0)
    assert [parse_key(record.key) for record in records] == [("g", "t", 0)]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [[p.error_code for p in topic.partitions] for topic in response.topics] == [
        [0, 0, unknown],
        [unknown],
    ]
    subscribed = int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    records, response = deleted(request, book, check_topic=lambda _: subscribed)
    assert not records
    assert response.topics[0].partitions[0].error_code == subscribed


def old(
    book: OffsetBook, *, empty_since_ms: int | None = None, subscribed: frozenset[str] = frozenset()
) -> list[int]:
    records = expired(
        book, "g", now_ms=NOW_MS, retention_ms=HOUR_MS, empty_since_ms=empty_since_ms, subscribed=subscribed
    )
    return [parse_key(record.key).partition for record in records]


def test_offset_expires_by_its_age_by_the_groups_emptiness_and_by_its_own_retention() -> None:
    book = OffsetBook()
    for partition, committed in enumerate(
        (
            CommittedOffset(1, -1, "", NOW_MS - HOUR_MS),
            CommittedOffset(1, -1, "", NOW_MS - HOUR_MS + 1),
            CommittedOffset(1, -1, "", NOW_MS - 10, NOW_MS),
            CommittedOffset(1, -1, "", NOW_MS - 2 * HOUR_MS, NOW_MS + 1),
        )
    ):
        book.put("g", "t", partition, encode_value(committed))
    assert old(book) == [0, 2]
    assert old(book, empty_since_ms=NOW_MS - HOUR_MS + 1) == [2]
    assert old(book, empty_since_ms=NOW_MS - HOUR_MS) == [0, 2]
    assert old(book, subscribed=frozenset({"t"})) == []
