from __future__ import annotations

import random
from dataclasses import replace
from uuid import UUID

import pytest

from appliance.delivery.arriving import pieces_of
from appliance.delivery.division import DELAYED_MAX, RECORDS_MAX, Division, RefusedDelay, Rules, divide
from appliance.delivery.waiting import Origin, waiting_of
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL, read_header
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, decode_records, encode_batch, encode_record, frame_batch

NOW_MS = 1_000_000
RULES = Rules(1 << 20, 8 << 20, is_compacted=False, is_exact=False, delay_ms_max=10_000_000)
DELAYED = (("delivery.delay", b"5000"),)


def divided(records: list[Record], rules: Rules = RULES, **options: int) -> Division | None:
    return divide(memoryview(encode_batch(records, **options)), rules, now_ms=NOW_MS)  # type: ignore[arg-type]


def delayed_records(found: Division) -> list[Record]:
    """Return the delayed records with their offsets in the batch, as they are read from an internal topic."""
    for each in found.delayed:
        each.level = 0
    (pieces,) = pieces_of(found.delayed, UUID(int=1), 0, 0, found.origin).values()
    stored = [
        record
        for count, payload in pieces.done
        for record in decode_records(frame_batch(payload, count=count))
    ]
    return [replace(each.record, offset=each.offset) for each in map(waiting_of, stored)]


@pytest.mark.parametrize("codec", list(Codec))
def test_both_parts_together_are_the_batch(codec: Codec) -> None:
    chosen = random.Random(codec)
    for _ in range(30):
        records = [
            Record(
                chosen.randbytes(chosen.randrange(50)),
                chosen.choice([None, b"k"]),
                DELAYED if chosen.random() < 0.4 else (("h", b"delivery.delay"),),
                NOW_MS + chosen.randrange(-5, 5),
            )
            for _ in range(chosen.randrange(1, 40))
        ]
        found = divide(
            memoryview(encode_batch(records, codec=codec, producer_id=7, producer_epoch=1, base_sequence=40)),
            RULES,
            now_ms=NOW_MS,
        )
        wanted = [replace(record, offset=number) for number, record in enumerate(records)]
        if found is None:
            assert all(record.headers != DELAYED for record in records)
            continue
        kept = decode_records(found.kept)
        assert kept == [record for record in wanted if record.headers != DELAYED]
        assert delayed_records(found) == [record for record in wanted if record.headers == DELAYED]
        header = read_header(found.kept)
        assert (header.last_offset_delta, header.records_count) == (len(records) - 1, len(kept))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)
        if kept:
            assert header.max_timestamp_ms == max(record.timestamp_ms for record in kept)
            assert header.codec == codec


def test_a_batch_of_delayed_records_only_leaves_its_place() -> None:
    found = divided([Record(b"x", headers=DELAYED, timestamp_ms=5)] * 3, codec=Codec.ZSTD)
    assert found is not None
    header = read_header(found.kept)
    assert (header.records_count, header.last_offset_delta, header.codec) == (0, 2, 0)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (NOW_MS, NOW_MS)


def test_a_batch_without_delayed_records_is_left_alone() -> None:
    assert divided([Record(b"delivery.delay")]) is None
    assert divided([Record(b"x", headers=(("delivery.delay", b"0"),))]) is None


def test_what_is_no_sound_batch_is_left_to_the_log() -> None:
    whole = encode_batch([Record(b"x", headers=DELAYED)])
    for damaged in (
        b"",
        whole[:40],
        whole[:-1],
        whole + b"x",
        whole[:-1] + b"\0",
        frame_batch(whole[61:], count=2),
        frame_batch(whole[61:], count=1, last_offset_delta=5),
        frame_batch(whole[61:], count=1, attributes=Codec.GZIP),
        frame_batch(whole[61:], count=1, attributes=7),
        frame_batch(whole[61:], count=1, attributes=0x20),
        frame_batch(whole[61:], count=1, base_offset=5),
        frame_batch(whole[61:], count=1, producer_id=4),
    ):
        assert divide(memoryview(damaged), RULES, now_ms=NOW_MS) is None


def test_a_batch_of_too_many_delayed_records_is_refused_whole() -> None:
    records = [Record(b"", headers=DELAYED)] * (DELAYED_MAX + 1)
    with pytest.raises(RefusedDelay) as refused:
        divided(records)
    assert (refused.value.index, refused.value.code) == (DELAYED_MAX, ErrorCode.MESSAGE_TOO_LARGE)
    found = divided([*records[:-1], Record(b"")])
    assert found is not None
    assert len(found.delayed) == DELAYED_MAX


@pytest.mark.parametrize(
    ("bad", "rules", "options", "code"),
    [
        (Record(b"x", headers=(("delivery.delay", b"x"),)), RULES, {}, ErrorCode.INVALID_RECORD),
        (Record(b"x", headers=DELAYED), RULES._replace(is_compacted=True), {}, ErrorCode.INVALID_RECORD),
        (
            Record(b"x" * 5_000, headers=DELAYED),
            RULES._replace(message_bytes_max=4_000),
            {"codec": Codec.ZSTD},
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
        (
            Record(b"x" * (1 << 20), headers=DELAYED),
            RULES._replace(message_bytes_max=4 << 20),
            {},
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
    ],
)
def test_a_record_that_cannot_be_delayed_is_named(
    bad: Record, rules: Rules, options: dict[str, int], code: ErrorCode
) -> None:
    with pytest.raises(RefusedDelay) as refused:
        divided([Record(b"", b"k"), bad], rules, **options)
    assert (refused.value.index, refused.value.code) == (1, code)


def test_the_kept_batch_of_a_transaction_belongs_to_it_even_without_a_record() -> None:
    found = divided(
        [Record(b"x", headers=DELAYED)],
        attributes=TRANSACTIONAL,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
    )
    assert found is not None
    kept = read_header(found.kept)
    assert (kept.is_transactional, kept.records_count, kept.last_offset_delta) == (True, 0, 0)
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (1, 2, 3)
    assert (found.is_transactional, found.origin) == (True, Origin(1, 2, 3))


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_timestamp_beyond_64_bits_is_refused(beyond: int) -> None:
    headers = [(), DELAYED] if beyond == 0 else [DELAYED, ()]
    records = b"".join(
        encode_record(Record(b"x", headers=each), offset_delta=index, timestamp_delta_ms=index != beyond - 1)
        for index, each in enumerate(headers)
    )
    batch = frame_batch(records, count=2, base_timestamp_ms=(1 << 63) - 1, max_timestamp_ms=(1 << 63) - 1)
    with pytest.raises(RefusedDelay) as refused:
        divide(memoryview(batch), RULES, now_ms=NOW_MS)
    assert (refused.value.index, refused.value.code) == (beyond, ErrorCode.INVALID_TIMESTAMP)


@pytest.mark.parametrize("header", [("delivery.delay", b"5000"), ("delivery.at", b"%d" % (NOW_MS + 5_000))])
def test_a_batch_of_too_many_records_beside_a_delayed_one_is_refused(header: tuple[str, bytes]) -> None:
    kept, delayed = Record(b"a delivery.delay"), Record(b"x", headers=(header,))
    assert divided([*[kept] * (RECORDS_MAX - 1), delayed]) is not None
    assert divided([kept] * (RECORDS_MAX + 1)) is None, "a text with the name asks for nothing"
    with pytest.raises(RefusedDelay, match="20001 records") as refused:
        divided([*[kept] * RECORDS_MAX, delayed])
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
