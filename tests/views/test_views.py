"""What the views make of records, over a reader and a writer that hold topics in memory."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

import pytest

from appliance.config.retry_configs import (
    DEAD_LETTER_OF,
    RETRY_DEAD_LETTERS,
    RETRY_ENABLE,
    RETRY_GROUP,
    RETRY_LEVELS,
    RETRY_MAX,
    RETRY_ORDERED,
    RETRY_TOPIC,
)
from appliance.delivery.waiting import Origin, Waiting
from appliance.message_audit.entry import Count, Finding, Kind
from appliance.message_audit.entry import encode as audit_entry
from appliance.message_trace.event import Event, Step
from appliance.message_trace.event import encode as trace_event
from appliance.protocol import retry_names as names
from appliance.protocol.records.record import Record
from appliance.services.progress import Progress
from appliance.services.progress import encode as progress
from appliance.views.audit import audit_report
from appliance.views.dead_letters import DeadLetterLog, Filter, Replay
from appliance.views.delayed import DelayedView, Soonest, cancelling, delivery_id
from appliance.views.moments import moment_ms
from appliance.views.offset_ranges import OffsetRanges
from appliance.views.retries import all_retries, retries_of
from appliance.views.topic_access import NotShown, PlacedRecord
from appliance.views.traces import TRACES_MAX, traces_of, wanted_of

Place = tuple[str, int]
ID = UUID(int=7)


class Topics:
    """Topics in memory, as a reader and as a writer."""

    def __init__(self, **partitions: int) -> None:
        self.logs: dict[Place, list[Record]] = {
            (name, number): [] for name, count in partitions.items() for number in range(count)
        }
        self.log_starts: dict[Place, int] = dict.fromkeys(self.logs, 0)
        self.settings: dict[str, dict[str, str]] = {}
        self.refuses = ""

    def topics(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for name, _ in self.logs:
            found[name] = found.get(name, 0) + 1
        return found

    def topic_ids(self) -> Mapping[str, UUID]:
        return {
            name: ID if name == "t" else UUID(int=number) for number, name in enumerate(self.topics(), 100)
        }

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        return {place: self.log_starts[place] for place in places}

    def ends(self, places: Iterable[Place], *, read_committed: bool) -> dict[Place, int]:
        return {place: len(self.logs[place]) for place in places}

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        return next((at for at, each in enumerate(self.logs[place]) if each.timestamp_ms >= time_ms), None)

    def records(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Iterator[PlacedRecord]:
        for place, end in ends.items():
            for offset in range(starts.get(place, end), end):
                yield PlacedRecord(*place, offset, self.logs[place][offset])

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        return {name: self.settings[name] for name in topics if name in self.settings}

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        *,
        partition: int = -1,
    ) -> None:
        if topic == self.refuses:
            raise NotShown("refused")
        self.logs[topic, max(partition, 0)].append(Record(value, key, tuple(headers), 5))

    def finish(self) -> None:
        """Everything is there at once."""

    def delete_before(self, offsets: Mapping[Place, int]) -> None:
        self.log_starts |= offsets


def waiting(offset: int, due_ms: int, name: bytes = b"", **more: object) -> Record:
    headers = ((("delivery.id", name),) if name else ()) + ((("delivery.at", b"9"),))
    record = Record(b"v", b"k", headers, 1)
    return Waiting(ID, 0, offset, due_ms, Origin(), record).to_record(2)


def delayed_topics() -> Topics:
    topics = Topics(t=1, __delayed_state=1, __delayed_cancels=1, __delayed_5s=1, __delayed_1m=1)
    topics.logs["__delayed_5s", 0] = [waiting(0, 90, b"a"), waiting(1, 70, b"b"), waiting(2, 80, b"a")]
    topics.logs["__delayed_1m", 0] = [waiting(3, 60), waiting(1, 70, b"b")]
    topics.logs["__delayed_state", 0] = [
        Record(progress(Progress({"5s": 0}))),
        Record(progress(Progress({"5s": 1}))),
    ]
    return topics


def test_delayed_records_behind_the_position_wait_each_once() -> None:
    soonest = Soonest(2)
    soonest.take(DelayedView(delayed_topics()).waiting())
    assert [each.waiting.due_ms for each in soonest.first()] == [60, 70]
    assert (soonest.count, soonest.counts, soonest.due_ms) == (3, {"t": 3}, {"t": 60})


def test_cancelled_records_do_not_wait() -> None:
    topics = delayed_topics()
    cancel = Waiting(ID, 0, 2, 0, Origin(), Record(None, None, tuple(cancelling(b"b")), 1)).to_record(2)
    topics.logs["__delayed_cancels", 0] = [cancel]
    assert sorted(each.waiting.offset for each in DelayedView(topics).waiting("t")) == [2, 3]


def test_nothing_is_cancelled_where_the_record_would_be_delivered() -> None:
    topics = delayed_topics()
    view = DelayedView(topics)
    with pytest.raises(NotShown, match="nothing can be cancelled"):
        view.require_delays("t")
    topics.settings["t"] = {"delivery.delay.enable": "true"}
    view.require_delays("t")
    topics.settings["t"]["retry.group"] = "g"
    with pytest.raises(NotShown, match="retry topic"):
        view.require_delays("t")
    with pytest.raises(NotShown, match="no topic gone"):
        list(view.waiting("gone"))
    with pytest.raises(ValueError, match="1 to 255"):
        delivery_id("x" * 256)


def dead(number: int, **headers: bytes) -> Record:
    said = tuple((name.replace("_", "."), value) for name, value in headers.items())
    place = (("retry.topic", b"t"), ("retry.partition", b"0"), ("retry.offset", b"%d" % number))
    return Record(b"v%d" % number, b"k%d" % number, (*place, *said), 10 * number)


def dead_topics() -> Topics:
    topics = Topics(t=1, retry=1, dlq=1)
    topics.logs["dlq", 0] = [dead(0), dead(1, retry_exception=b"KeyError"), dead(2, mine=b"1"), dead(3)]
    return topics


def identities(topics: Topics) -> list[str]:
    return [each.identity for each in DeadLetterLog(topics, "dlq")]


def test_dead_letters_are_replayed_and_purged_and_then_no_more_there() -> None:
    topics = dead_topics()
    log = DeadLetterLog(topics, "dlq", topics)
    letters = list(log)
    replay = Replay(log, "retry", topics)
    replay.add(letters[1])
    assert identities(topics) == ["0-0", "0-1", "0-2", "0-3"], "not moved out before it is acknowledged"
    replay.flush()
    log.remove([letters[0]])
    log.trim()
    assert identities(topics) == ["0-2", "0-3"]
    assert topics.log_starts["dlq", 0] == 2
    (again,) = topics.logs["retry", 0]
    said = dict(again.headers)
    assert (again.value, said["retry.replay"], said["retry.offset"]) == (b"v1", b"1", b"1")
    assert "retry.exception" not in said


def test_a_replay_that_is_refused_loses_nothing() -> None:
    topics = dead_topics()
    log = DeadLetterLog(topics, "dlq", topics)
    replay = Replay(log, "retry", topics)
    topics.refuses = "retry"
    with pytest.raises(NotShown):
        replay.add(next(iter(log)))
    assert len(identities(topics)) == 4


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), [0, 1, 2, 3]),
        (Filter(ids=("0-1", "0-3")), [1, 3]),
        (Filter(key="k2"), [2]),
        (Filter(since_ms=20), [2, 3]),
        (Filter(exception="Key"), [1]),
        (Filter(headers=("mine",)), [2]),
        (Filter(headers=("mine=1",), key="k2"), [2]),
        (Filter(headers=("mine=2",)), []),
    ],
)
def test_filters_choose(wanted: Filter, found: list[int]) -> None:
    letters = DeadLetterLog(dead_topics(), "dlq")
    assert [each.offset for each in letters if wanted.chooses(each)] == found


def marker(*ranges: tuple[int, int]) -> Record:
    return Record(json.dumps({"v": 1, "removed": ranges}).encode(), None, (("__dlq.removed", b"1"),))


def test_a_marker_of_a_stranger_costs_little() -> None:
    topics = dead_topics()
    log = topics.logs["dlq", 0]
    log += [marker((1, 1), (-5, 0))]
    log += [Record(b"x", None, (("retry.dead", b"true"),))] * 5_000
    # Each range spans 5,000 offsets.
    log += [marker(*[(4, 1 << 62)] * 10_000), Record(b"[" * 2_000_000, None, (("__dlq.removed", b"1"),))]
    began_s = time.process_time()
    assert identities(topics) == ["0-2", "0-3"]
    assert time.process_time() - began_s < 1


def test_a_hostile_dead_letter_does_not_hide_the_others() -> None:
    topics = dead_topics()
    topics.logs["dlq", 0] += [
        dead(4),
        Record(b"v", None, (), 1 << 62),
        Record(b"v", None, (), -(1 << 62)),
    ]
    topics.logs["dlq", 0].append(
        Record(b"v", None, ((names.DEAD_COUNT, b"9" * 5_000), (names.DEAD_COUNT, b"7")), 5)
    )
    found = [each.as_json() for each in DeadLetterLog(topics, "dlq")]
    assert len(found) == 8
    assert found[-1]["attempts"] is None
    assert found[5]["died"] == str(1 << 62)


def test_offsets_as_ranges_are_a_set() -> None:
    seeded = random.Random(7)
    for _ in range(200):
        ranges, known = OffsetRanges(), set[int]()
        for _ in range(20):
            start = seeded.randrange(60)
            end = start + seeded.randrange(12) - 2
            ranges.add(start, end)
            known.update(range(start, end))
            assert [each for each in range(-2, 80) if each in ranges] == sorted(known)
        assert len(ranges) == sum(each - 1 not in known for each in known)


def test_retries_are_found_by_the_settings_of_topics() -> None:
    topics = Topics(t=1, **{"t.g.retry": 1, "t.g.dlq": 1})
    topics.settings["t.g.retry"] = {
        RETRY_GROUP: "g",
        RETRY_TOPIC: "t",
        RETRY_DEAD_LETTERS: "t.g.dlq",
        RETRY_LEVELS: "1s, 2s",
        RETRY_MAX: "2",
        RETRY_ENABLE: "true",
        RETRY_ORDERED: "false",
    }
    (found,) = all_retries(topics)
    assert "does not exist" in found.fault
    topics.settings["t.g.dlq"] = {DEAD_LETTER_OF: "t.g.retry"}
    found = retries_of(topics, "g", "t")
    assert (found.fault, found.levels, found.is_enabled) == ("", ("1s", "2s"), True)
    with pytest.raises(NotShown, match="has no retries"):
        retries_of(topics, "other", "t")
    del topics.settings["t.g.retry"], topics.logs["t.g.retry", 0]
    with pytest.raises(
        NotShown,
        match=r"t\.g\.retry does not exist, or you may not see it; its dead letters are still in t\.g\.dlq",
    ):
        retries_of(topics, "g", "t")


def test_the_audit_reads_from_an_hour_before_the_time() -> None:
    topics = Topics(t=1, __audit=1)
    hour_ms = 3_600_000

    def count(kind: Kind, bucket: int, group: str = "") -> Record:
        value = Count(
            kind=kind,
            topic="t",
            partition=0,
            bucket=bucket,
            bucket_ms=60_000,
            group=group,
            records=5,
            bytes=50,
        )
        return Record(audit_entry(value), timestamp_ms=bucket + 1)

    gap = Finding(kind=Kind.MISSING, topic="t", partition=0, bucket=3 * hour_ms, source="s", first=4, last=6)
    topics.logs["__audit", 0] = [
        count(Kind.PRODUCED, 0),
        count(Kind.PRODUCED, 3 * hour_ms),
        count(Kind.COMMITTED, 3 * hour_ms, "g"),
        Record(audit_entry(gap), timestamp_ms=3 * hour_ms + 1),
        Record(b"rubbish", timestamp_ms=3 * hour_ms + 1),
    ]
    found = audit_report(topics, "t", from_ms=2 * hour_ms, to_ms=None, group=None)
    (bucket,) = found["buckets"]
    assert (bucket["produced"]["records"], bucket["groups"][0]["difference"]) == (5, 0)
    assert [(each["first"], each["last"]) for each in found["findings"]] == [(4, 6)]
    assert len(audit_report(topics, "t", from_ms=None, to_ms=None, group=None)["buckets"]) == 2
    with pytest.raises(NotShown, match=r"audit\.enable"):
        audit_report(Topics(t=1), "t", from_ms=None, to_ms=None, group=None)


def test_a_trace_is_found_by_id_and_by_place() -> None:
    topics = Topics(t=1, __trace=1, **{"trace-reports": 1})
    trace, other = "a" * 32, "b" * 32

    def step(which: str, kind: Step, at_ms: int, offset: int = 3) -> Record:
        return Record(
            trace_event(Event(trace=which, step=kind, topic="t", partition=0, offset=offset, at_ms=at_ms))
        )

    topics.logs["__trace", 0] = [step(trace, Step.APPENDED, 5), step(other, Step.APPENDED, 6, 4)]
    # Only what was processed counts in the topic to which anybody may write.
    topics.logs["trace-reports", 0] = [step(trace, Step.PROCESSED, 9), step(trace, Step.CONSUMED, 1)]
    for text in (trace.upper(), "t-0-3"):
        (found,) = traces_of(topics, wanted_of(text), from_ms=None)
        assert [each.step for each in found] == ["appended", "processed"]
    # Anybody may report a record under any id.
    topics.logs["trace-reports", 0] += [step(f"{n:032x}", Step.PROCESSED, n) for n in range(5_000)]
    assert len(traces_of(topics, wanted_of("t-0-3"), from_ms=None)) == TRACES_MAX
    for text in ("t-0-9", "c" * 32):
        with pytest.raises(NotShown, match="no trace"):
            traces_of(topics, wanted_of(text), from_ms=None)
    for text in ("t", "t-0-²", "x" * 32, ""):
        with pytest.raises(ValueError, match="neither"):
            wanted_of(text)


def test_times_that_people_write() -> None:
    assert moment_ms("1970-01-02") == 86_400_000
    assert moment_ms("1970-01-01T01:00:00+01:00") == 0
    assert moment_ms("1h") < moment_ms("1m")
    for text in ("yesterday", "1y", "²h", ""):
        with pytest.raises(ValueError):  # noqa: PT011 - the callers write the text
            moment_ms(text)
