from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ApplianceError
from appliance.message_audit import entry, observation, positions
from appliance.message_audit.attribution import RANGES_MAX, Appended, Attribution
from appliance.message_audit.batches import (
    Stamped,
    facts_of,
    parse_time,
    part_of_header,
    parts_of_records,
    stamped,
)
from appliance.message_audit.commits import Commits
from appliance.message_audit.entry import Entry, Kind
from appliance.message_audit.histogram import BOUNDS_MS, Histogram
from appliance.message_audit.positions import (
    GroupPosition,
    PartitionPosition,
    Positions,
    decode_piece,
    encode_snapshot,
    last_snapshot,
)
from appliance.message_audit.record_ids import (
    GAPS_MAX,
    SOURCES_MAX,
    IdKind,
    Source,
    Sources,
    follow,
    parse_id,
)
from appliance.message_audit.report import Report, without
from appliance.message_audit.runs import OTHER_BUCKET, Header, count_run
from appliance.message_audit.tally import BUCKETS_PER_BATCH_MAX, FINDINGS_MAX, Key, Part, Tally
from appliance.protocol.records.batch import CONTROL, HEADER, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.offset_records import CommittedOffset, encode_value, offset_key
from appliance.protocol.records.record import Record, decode_records, encode_batch

MINUTE_MS = 60_000


def batch(times_ms: Sequence[int], base_offset: int = 0) -> bytes:
    return encode_batch([Record(b"x", timestamp_ms=each) for each in times_ms], base_offset=base_offset)


# Histogram


@given(st.lists(st.integers(-1_000, 1 << 40), min_size=1))
def test_a_histogram_counts_each_delay_once_and_adds_up(delays_ms: list[int]) -> None:
    whole, first, second = Histogram(), Histogram(), Histogram()
    for index, delay_ms in enumerate(delays_ms):
        whole.add(delay_ms)
        (first if index % 2 else second).add(delay_ms)
    merged = Histogram()
    for each in (first, second):
        merged.merge(each.counts, sum_ms=each.sum_ms, max_ms=each.max_ms)
    assert (merged.counts, merged.sum_ms, merged.max_ms) == (whole.counts, whole.sum_ms, whole.max_ms)
    assert sum(whole.counts.values()) == whole.count == len(delays_ms)
    largest = max(0, *delays_ms)
    assert whole.max_ms == largest
    quantile_ms = whole.quantile_ms(1.0)
    assert quantile_ms is not None
    assert quantile_ms >= min(largest, BOUNDS_MS[-1])


def test_a_bound_has_the_delays_up_to_it() -> None:
    histogram = Histogram()
    for delay_ms in (-5, 0, 1, 2, 3, 5, 6, 10**9):
        histogram.add(delay_ms)
    assert histogram.counts == {"0": 2, "1": 1, "2": 1, "5": 2, "10": 1, "inf": 1}
    assert histogram.quantile_ms(0.5) == 2
    assert Histogram().quantile_ms(0.5) is None


# Ids


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"7", ("", 7)),
        (b"orders-1:7", ("orders-1", 7)),
        (b"a:b:7", ("a:b", 7)),
        (None, None),
        (b"", None),
        (b"x", None),
        (b"a:", None),
        (b"-1", None),
        (b"\xff:1", None),
        ("a:٣".encode(), None),
        (b"9" * 40, None),
        (b"a" * 1_000_000 + b":1", None),
    ],
)
def test_ids_that_are_none_are_left_alone(value: bytes | None, found: tuple[str, int] | None) -> None:
    assert parse_id(value) == found


def test_a_missing_and_a_doubled_id_are_named() -> None:
    sources: Sources = {}
    found = [follow(sources, "s", number) for number in (1, 2, 4, 5, 5, 6, 9)]
    assert [each for each in found if each] == [
        (IdKind.MISSING, "s", 3, 3),
        (IdKind.DUPLICATE, "s", 5, 5),
        (IdKind.MISSING, "s", 7, 8),
    ]


def test_an_id_that_comes_late_is_late_once_and_then_a_duplicate() -> None:
    sources: Sources = {}
    found = [follow(sources, "", number) for number in (0, 5, 3, 3, 1, 2, 4)]
    assert [each and each.kind for each in found] == [
        None,
        IdKind.MISSING,
        IdKind.LATE,
        IdKind.DUPLICATE,
        IdKind.LATE,
        IdKind.LATE,
        IdKind.LATE,
    ]
    assert sources[""].gaps == []


@given(st.permutations(range(12)), st.integers(0, 11))
def test_any_order_of_ids_ends_with_exactly_what_is_missing(order: list[int], lost: int) -> None:
    order = [number for number in order if number != lost]
    sources: Sources = {}
    missing: set[int] = set()
    for number in order:
        found = follow(sources, "s", number)
        if found is not None:
            assert found.kind is not IdKind.DUPLICATE or found.first < order[0]
            numbers = set(range(found.first, found.last + 1))
            missing = missing | numbers if found.kind is IdKind.MISSING else missing - numbers
    assert missing == ({lost} if order[0] < lost < max(order) else set())


def test_sources_and_gaps_are_bounded() -> None:
    sources: Sources = {}
    for number in range(SOURCES_MAX * 3):
        follow(sources, f"s{number}", 1)
    assert len(sources) == SOURCES_MAX
    assert next(reversed(sources)) == f"s{SOURCES_MAX * 3 - 1}"
    sources = {}
    for number in range(0, GAPS_MAX * 6, 2):
        follow(sources, "s", number)
    for number in range(GAPS_MAX * 5 + 1, GAPS_MAX * 6 - 2, 2):
        follow(sources, "s", number)
    assert len(sources["s"].gaps) <= GAPS_MAX


# Batches


@given(st.integers(1, 50), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 1_000))
def test_parts_of_a_batch_add_up_to_the_batch(count: int, cuts: list[int], base: int) -> None:
    facts = facts_of(HEADER.unpack_from(batch([MINUTE_MS] * count, base)))
    edges = sorted({base, base + count, *(min(base + cut, base + count) for cut in cuts)})
    parts = [
        part_of_header(facts, MINUTE_MS, first=first, end=end) for first, end in itertools.pairwise(edges)
    ]
    assert sum(part.records for part in parts if part) == count
    assert sum(part.size_bytes for part in parts if part) == facts.size_bytes


def test_a_batch_over_two_buckets_needs_its_records() -> None:
    data = batch([MINUTE_MS - 1, MINUTE_MS, MINUTE_MS + 5], 7)
    facts = facts_of(HEADER.unpack_from(data))
    assert part_of_header(facts, MINUTE_MS, first=7, end=10) is None
    records = stamps(data)
    parts = parts_of_records(records, facts, MINUTE_MS, first=7, end=10)
    assert [(part.bucket, part.records) for part in parts] == [(0, 1), (MINUTE_MS, 2)]
    assert sum(part.size_bytes for part in parts) == facts.size_bytes
    later = parts_of_records(records, facts, MINUTE_MS, first=9, end=10)
    assert [(part.bucket, part.records) for part in later] == [(MINUTE_MS, 1)]


def test_a_batch_of_many_times_has_a_bounded_number_of_buckets() -> None:
    data = batch([each * MINUTE_MS for each in range(2_000)])
    facts = facts_of(HEADER.unpack_from(data))
    parts = parts_of_records(stamps(data), facts, MINUTE_MS, first=0, end=2_000)
    assert len(parts) == BUCKETS_PER_BATCH_MAX + 1
    assert sum(part.records for part in parts) == 2_000
    assert parts[-1].bucket == OTHER_BUCKET


def test_the_time_header_counts_before_the_timestamp_if_it_is_one() -> None:
    def times(value: bytes | None, **options: Any) -> list[int]:
        records = [Record(b"", headers=(("audit.time", value),), timestamp_ms=99)]
        return [time_ms for _, time_ms, _ in stamps(encode_batch(records), **options)]

    assert times(b"12", by_headers=True) == [12]
    assert times(b"12") == [99]
    for bad in (b"x", b"", None, b"9" * 15, b"9" * 1_000_000, b"-4"):
        assert times(bad, by_headers=True) == [99]


RECORDS = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(
            st.tuples(
                st.sampled_from(("audit.id", "audit.time", "other", "")), st.none() | st.binary(max_size=70)
            ),
            max_size=4,
        ).map(tuple),
        st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=80,
)


@given(RECORDS, st.sampled_from((Codec.NONE, Codec.GZIP)), st.binary(max_size=4), st.integers(0, 300))
def test_ids_and_times_are_those_that_decoding_finds(
    records: list[Record], codec: Codec, noise: bytes, at: int
) -> None:
    data = encode_batch(records, base_offset=9, codec=codec)
    assert stamps(data, by_headers=True) == [
        (
            record.offset,
            next(
                (parse_time(each, record.timestamp_ms) for each in values(record, "audit.time")),
                record.timestamp_ms,
            ),
            next(values(record, "audit.id"), None),
        )
        for record in decode_records(data)
    ]
    at = HEADER_BYTES + at % (len(data) - HEADER_BYTES)
    damaged = data[:at] + noise + data[at + len(noise) :]
    with suppress(ApplianceError):
        stamps(damaged, by_headers=True)


def values(record: Record, name: str) -> Iterator[bytes]:
    return (value for each, value in record.headers if each == name and value is not None)


def stamps(data: bytes, *, by_headers: bool = False) -> list[Stamped]:
    """Read a batch that lies between others."""
    around = encode_batch([Record(b"another", timestamp_ms=5)])
    header = HEADER.unpack_from(data)
    return stamped(around + data + around, len(around), header, by_headers=by_headers)


# Runs


@given(
    st.lists(
        st.tuples(
            st.integers(-3, 300),  # first timestamp
            st.integers(0, 90),  # how much later the last one is
            st.integers(1, 9),  # records
            st.sampled_from((0, 0, 0, CONTROL, LOG_APPEND_TIME)),
        ),
        max_size=40,
    ),
    st.integers(0, 200),
)
def test_runs_of_batches_count_as_each_batch_by_itself(
    batches: list[tuple[int, int, int, int]], end: int
) -> None:
    headers: list[Header] = []
    offset = 0
    for first_ms, later_ms, count, attributes in batches:
        headers.append(
            (
                offset,
                100 + count,
                0,
                2,
                0,
                attributes,
                count - 1,
                first_ms,
                first_ms + later_ms,
                -1,
                -1,
                -1,
                count,
            )
        )
        offset += count
    appended = Appended(0, offset + 1, 1_000, 1_500)
    by_run, singly = Tally(), Tally()
    key = Key(Kind.PRODUCED, "t", 0, OTHER_BUCKET, 100)
    index = unsaid = 0
    while index < len(headers):
        until = end if headers[index][0] < end else None
        run = count_run(headers, index, len(headers), end=until, bucket_ms=100, appended=appended)
        by_run.count_run(key, run)
        assert until is None or run.stop == index or headers[run.stop - 1][0] < end
        if run.stop == index:
            unsaid += 1
            index += 1
        else:
            index = run.stop
    for header in headers:
        facts = facts_of(header)
        part = part_of_header(facts, 100, first=facts.first, end=facts.end)
        if not facts.records or part is None:
            unsaid -= part is None and facts.records > 0
            continue
        singly.count(key._replace(bucket=part.bucket), part, at_ms=appended.at_ms(facts.first))
    assert unsaid == 0, "a run is empty only where records have to say it"
    assert sorted(map(repr, by_run.entries())) == sorted(map(repr, singly.entries()))


# Attribution, observations


def test_a_range_names_the_client_of_an_offset_and_when_it_was_appended() -> None:
    attribution = Attribution()
    attribution.add(Appended(10, 20, 1_000, 2_000, "b", "User:b"))
    attribution.add(Appended(0, 10, 500, 500, "a", "User:a"))
    assert attribution.of(9) == (Appended(0, 10, 500, 500, "a", "User:a"), 500)
    found = attribution.of(15)
    assert found is not None
    assert (found[0].client, found[1]) == ("b", 1_500)
    assert attribution.of(20) is None
    assert attribution.around(3) == (Appended(0, 10, 500, 500, "a", "User:a"), 10)
    assert attribution.around(20) == (None, None)
    attribution.forget_below(10)
    assert attribution.of(5) is None
    assert attribution.around(5) == (None, 10)
    assert attribution.of(10) is not None
    for number in range(RANGES_MAX * 2):
        attribution.add(Appended(100 + number, 101 + number, 0, 0, "c", ""))
    assert attribution.dropped == RANGES_MAX + 1


def test_observations_survive_the_wire_and_foreign_ones_are_left_out() -> None:
    seen = observation.Observation(
        produced=[observation.Produced(UUID(int=3), 1, 5, 9, 100, 200, "c\n", "User:x")], lost=4
    )
    assert observation.decode(observation.encode(seen)) == seen
    before = b'{"v":1,"fetched":[["00000000-0000-0000-0000-000000000003",1,5,9,100,"c","User:x"]]}'
    assert observation.decode(before) == observation.Observation(
        fetched=[observation.Fetched(UUID(int=3), 1, 5, 9, 100, "c", "User:x", 0)]
    )
    for foreign in (None, b"", b"{", b"[]", b'{"v":2}', b'{"v":1,"produced":[[1]]}'):
        assert observation.decode(foreign) is None
    assert len(observation.short("x" * 40_000)) == observation.NAME_LENGTH_MAX


# Commits


def commit(offset: int, group: str = "g", topic: str = "t") -> Record:
    value = encode_value(CommittedOffset(offset, -1, "", 1_000 + offset))
    return Record(value, offset_key(group, topic, 0), timestamp_ms=1)


def taken(commits: Commits, data: bytes) -> list[tuple[str, int, int]]:
    found = commits.take(HEADER.unpack_from(data), decode_records(data))
    return [(each.group, each.offset, each.at) for each in found]


def marker(producer_id: int, base_offset: int, *, committed: bool) -> bytes:
    made = EndTransactionMarker(committed, 0)
    data = bytearray(encode_marker_batch(made, producer_id=producer_id, producer_epoch=0, timestamp_ms=1))
    data[:8] = base_offset.to_bytes(8, "big")
    return bytes(data)


def test_commits_of_a_transaction_count_with_its_marker_and_not_if_it_is_aborted() -> None:
    commits = Commits(0)
    assert taken(commits, encode_batch([commit(3)])) == [("g", 3, 0)]
    for producer_id, base in ((7, 1), (8, 2)):
        data = encode_batch(
            [commit(10 * producer_id)],
            base_offset=base,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
        assert taken(commits, data) == []
    assert commits.resume_at == 1
    assert taken(commits, marker(8, 3, committed=False)) == []
    assert (commits.resume_at, commits.position) == (1, 4)
    assert taken(commits, marker(7, 4, committed=True)) == [("g", 70, 4)]
    assert commits.resume_at == 5


def test_records_that_are_no_commits_are_left_out() -> None:
    foreign = [
        Record(None, offset_key("g", "t", 0)),
        Record(b"x", b"\0\2group"),
        Record(b"", b"\0\1"),
        Record(b"\0\x09", offset_key("g", "t", 0)),
        Record(b"x", None),
    ]
    assert taken(Commits(0), encode_batch(foreign)) == []


# Positions


def some_positions(partitions: int) -> Positions:
    made = Positions(commits={3: 40}, observed=9)
    for number in range(partitions):
        made.partitions[UUID(int=number + 1), number] = PartitionPosition(
            1, number, {"g:1": GroupPosition(1, 2, 3, 4)}, {"s": Source(7, [(2, 3)])}
        )
    return made


def test_a_snapshot_comes_back_from_its_pieces_and_a_torn_one_does_not_count() -> None:
    whole = some_positions(120)
    values = list(encode_snapshot(whole, audit_id="x", replay_from=77, snapshot=5))
    assert len(values) == 3
    torn = list(encode_snapshot(some_positions(120), audit_id="x", replay_from=99, snapshot=6))[:2]
    pieces = [piece for value in values + torn if (piece := decode_piece(value)) is not None]
    last = last_snapshot(pieces)
    found = Positions()
    for piece in last:
        assert (piece.audit_id, piece.replay_from, piece.snapshot) == ("x", 77, 5)
        found.update(piece.positions)
    assert found == whole
    assert last_snapshot(pieces[3:]) == []


def test_a_round_replaces_what_it_has_changed_and_nothing_else() -> None:
    held = some_positions(2)
    changed = Positions({(UUID(int=2), 1): PartitionPosition(1, 50)}, {4: 1}, positions.UNCHANGED)
    read = positions.decode(positions.encode(changed))
    assert read == changed
    assert read is not None
    held.update(read)
    assert held.partitions[UUID(int=2), 1].next == 50
    assert (held.partitions[UUID(int=1), 0].groups, held.commits, held.observed) == (
        {"g:1": GroupPosition(1, 2, 3, 4)},
        {3: 40, 4: 1},
        9,
    )
    for foreign in (None, b"", b"{}", b'{"v":9,"kind":"positions"}', b'{"v":1,"kind":"produced"}'):
        assert positions.decode(foreign) is None


# Tally and report


def key(kind: Kind, bucket: int, **who: str) -> Key:
    return Key(kind, "t", 0, bucket, MINUTE_MS, **who)


def report_of(*tallies: Tally, **options: str) -> dict[str, object]:
    report = Report("t", from_ms=0, to_ms=1 << 60, **options)
    for tally in tallies:
        for each in tally.entries():
            read = entry.decode(entry.encode(each))
            assert read is not None
            report.add(read)
    return report.result()


def test_a_report_adds_rounds_up_and_shows_the_bucket_whose_counts_differ() -> None:
    first, second = Tally(), Tally()
    first.count(key(Kind.PRODUCED, 0, client="c"), Part(0, 10, 100, 0), at_ms=5)
    second.count(key(Kind.PRODUCED, 0, client="c"), Part(0, 5, 50, 0), at_ms=None)
    second.count(key(Kind.PRODUCED, MINUTE_MS, client="d"), Part(0, 4, 40, 0), at_ms=5)
    second.count(key(Kind.COMMITTED, 0, group="g"), Part(0, 15, 150, 0), at_ms=700)
    second.count(key(Kind.COMMITTED, MINUTE_MS, group="g"), Part(0, 3, 30, 0), at_ms=700)
    result = report_of(first, second)
    buckets = result["buckets"]
    assert isinstance(buckets, list)
    assert [(each["bucket"], each["produced"]["records"]) for each in buckets] == [(0, 15), (MINUTE_MS, 4)]
    assert [each["groups"][0]["difference"] for each in buckets] == [0, 1]
    assert buckets[0]["groups"][0]["delay"]["p99_ms"] == 700
    assert buckets[0]["produced"]["delay"]["records"] == 10
    assert report_of(first, second, group="other")["buckets"] != buckets


def test_a_late_id_is_not_missing_in_the_report() -> None:
    tally = Tally()
    sources: Sources = {}
    for offset, number in enumerate((1, 6, 3, 9)):
        found = follow(sources, "s", number)
        if found is not None:
            tally.found_id(key(Kind.PRODUCED, 0), found, offset=offset)
    found_now = report_of(tally)["findings"]
    assert isinstance(found_now, list)
    missing = [(each["first"], each["last"]) for each in found_now if each["kind"] == "missing"]
    assert missing == [(2, 2), (4, 5), (7, 8)]
    assert without([(1, 9)], [(3, 4), (1, 1), (9, 20)]) == [(2, 2), (5, 8)]


def test_findings_of_a_round_are_bounded_and_none_is_forgotten() -> None:
    tally = Tally()
    sources: Sources = {}
    follow(sources, "s", 10)
    for offset in range(FINDINGS_MAX + 50):
        found = follow(sources, "s", 10)
        assert found is not None
        tally.found_id(key(Kind.PRODUCED, 0), found, offset=offset)
    assert tally.is_full
    result = report_of(tally)
    named = result["findings"]
    assert isinstance(named, list)
    assert len(named) == FINDINGS_MAX
    assert result["unnamed"] == {"duplicate": 50}


def test_foreign_records_are_no_entries() -> None:
    for foreign in (None, b"", b"x", b"[]", b'{"v":7}', b'{"v":1,"records":"x"}'):
        assert entry.decode(foreign) is None
    assert entry.decode(b'{"v":1,"kind":"produced","topic":"t"}') == Entry(v=1, kind="produced", topic="t")
