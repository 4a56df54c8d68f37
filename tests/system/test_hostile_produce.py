"""Record batches that lie, over a live connection: the error code that exists for it, and nothing in the log."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import cramjam
import lz4.frame
import psutil
import pytest
import zstandard

from appliance.protocol.errors import ErrorCode
from appliance.protocol.primitives import uvarint_bytes
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec, compress
from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.record import Record, encode_batch, encode_record, frame_batch
from appliance.protocol.records.varint import write_varint
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetch, parse_batches
from tests.support.wire import WireSocket
from tests.system.raw import MIB, Produced, create_topic, new_producer_id, produce, produce_frame
from tests.system.steady import undisturbed

TOPIC = "hostile"
DECOMPRESSED_MAX = 8 * MIB
# A refused bomb may have been unpacked up to the limit, and copied once while it grew.
BOMB_GROWTH_BYTES = 3 * DECOMPRESSED_MAX
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def records(count: int) -> bytes:
    return b"".join(
        encode_record(Record(b"value %d" % n), offset_delta=n, timestamp_delta_ms=0) for n in range(count)
    )


def batch(payload: bytes | None = None, count: int = 3, **fields: int) -> bytearray:
    """A sound batch of three records, but for what `fields` says."""
    stamp = now_ms()
    fields = {"base_timestamp_ms": stamp, "max_timestamp_ms": stamp} | fields
    return bytearray(frame_batch(records(3) if payload is None else payload, count=count, **fields))


def resealed(raw: bytearray) -> bytearray:
    """With a checksum that holds again."""
    struct.pack_into(">I", raw, b.CRC, checksum(raw[b.ATTRIBUTES :]))
    return raw


def patched(position: int, layout: str, value: int, *, reseal: bool = True) -> bytearray:
    raw = batch()
    struct.pack_into(layout, raw, position, value)
    return resealed(raw) if reseal else raw


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        write_varint(out, value)
    return bytes(out)


def record_of(body: bytes) -> bytearray:
    """A batch of one record with this body."""
    return batch(varints(len(body)) + body, count=1)


def bomb(codec: Codec) -> bytes:
    """Four times more than may be unpacked, in less than a batch may have."""
    zeros = bytes(4 * DECOMPRESSED_MAX)
    match codec:
        case Codec.GZIP:
            return gzip.compress(zeros)
        case Codec.LZ4:
            return bytes(lz4.frame.compress(zeros))
        case Codec.ZSTD:
            return zstandard.ZstdCompressor().compress(zeros)
        case _:
            # Snappy packs 1 : 21 at best, too little for a bomb in one batch; but it says first how long it is.
            packed = bytes(cramjam.snappy.compress_raw(bytes(4 * MIB)))
            length = uvarint_bytes(4 * MIB)
            assert packed.startswith(length)
            return uvarint_bytes(len(zeros)) + packed[len(length) :]


def xerial_bomb() -> bytes:
    """Java's framing of snappy: many blocks, each of them small."""
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    blocks = (struct.pack(">i", len(block)) + block) * 18
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + blocks


Lie = tuple[bytes | bytearray | None, ErrorCode]


def lies() -> dict[str, tuple[bytes | None, ErrorCode]]:
    """Name → (records field, the answer that Kafka has for it)."""
    whole = batch()
    invalid, corrupt = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
    found: dict[str, Lie] = {
        "null records": (None, invalid),
        "no records": (b"", invalid),
        "one byte": (b"\x00", invalid),
        "header cut": (whole[:40], invalid),
        "bad crc": (patched(b.RECORDS + 2, ">B", 0xEE, reseal=False), corrupt),
        "magic 0": (patched(b.MAGIC, ">b", 0), invalid),
        "magic 1": (patched(b.MAGIC, ">b", 1), invalid),
        "magic 3": (patched(b.MAGIC, ">b", 3), invalid),
        "magic -1": (patched(b.MAGIC, ">b", -1), invalid),
        "length negative": (patched(b.BATCH_LENGTH, ">i", -1), corrupt),
        "length zero": (patched(b.BATCH_LENGTH, ">i", 0), corrupt),
        "length largest": (patched(b.BATCH_LENGTH, ">i", (1 << 31) - 1), invalid),
        "longer than its bytes": (whole[:-1], invalid),
        "shorter than its bytes": (whole + b"\x00", invalid),
        "two batches": (whole + whole, invalid),
        "count too high": (batch(count=4), invalid),
        "count too low": (batch(count=2), invalid),
        "count zero": (batch(count=0), invalid),
        "count negative": (patched(b.RECORDS_COUNT, ">i", -1), invalid),
        "count largest": (batch(count=(1 << 31) - 1), invalid),
        "last offset delta too high": (batch(last_offset_delta=7), invalid),
        "last offset delta too low": (batch(last_offset_delta=0), invalid),
        "last offset delta negative": (batch(last_offset_delta=-1), invalid),
        "base offset": (batch(base_offset=5), invalid),
        "control batch": (batch(attributes=b.CONTROL), invalid),
        "transaction without one": (
            batch(attributes=b.TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,  # the request names no transactional id
        ),
        "transaction without a producer": (
            batch(attributes=b.TRANSACTIONAL),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        "log append time": (batch(attributes=b.LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
        "producer without a sequence": (
            batch(producer_id=1, producer_epoch=0, base_sequence=-1),
            invalid,
        ),
        "record length negative": (batch(varints(-5) + bytes(10), count=1), invalid),
        "record length largest": (batch(varints((1 << 31) - 1), count=1), invalid),
        "record varint endless": (batch(b"\xff" * 20, count=1), invalid),
        "key longer than its record": (record_of(b"\0" + varints(0, 0, 1 << 30)), invalid),
        "key length -2": (record_of(b"\0" + varints(0, 0, -2, 0, 0)), invalid),
        "two billion headers": (record_of(b"\0" + varints(0, 0, -1, -1, (1 << 31) - 1)), invalid),
        "headers negative": (record_of(b"\0" + varints(0, 0, -1, -1, -1)), invalid),
        "header name null": (record_of(b"\0" + varints(0, 0, -1, -1, 1, -1, -1)), invalid),
        "record ends early": (record_of(b"\0" + varints(0, 0, -1, -1, 0) + b"\0"), invalid),
        "offset delta too high": (record_of(b"\0" + varints(0, 3, -1, -1, 0)), invalid),
        "far future": (
            batch(base_timestamp_ms=1 << 52, max_timestamp_ms=1 << 52),
            ErrorCode.INVALID_TIMESTAMP,
        ),
        "timestamp overflow": (
            batch(base_timestamp_ms=(1 << 63) - 1, max_timestamp_ms=(1 << 63) - 1),
            ErrorCode.INVALID_TIMESTAMP,
        ),
        "over the topic's limit": (batch(varints(0) * (2 * MIB), count=2 * MIB), ErrorCode.MESSAGE_TOO_LARGE),
        "xerial bomb": (batch(xerial_bomb(), count=1, attributes=Codec.SNAPPY), ErrorCode.MESSAGE_TOO_LARGE),
    }
    for number in (5, 6, 7):
        found[f"codec {number}"] = (batch(attributes=number), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    for codec in CODECS:
        name, packed = codec.name.lower(), compress(codec, records(3))
        found |= {
            f"{name} bomb": (batch(bomb(codec), count=1, attributes=codec), ErrorCode.MESSAGE_TOO_LARGE),
            f"{name} count too high": (batch(packed, 4, attributes=codec), invalid),
            f"{name} count too low": (batch(packed, 2, attributes=codec), invalid),
            f"{name} cut": (batch(packed[:-6], 3, attributes=codec), invalid),
            f"{name} of noise": (batch(b"\x93\x11\x7f" * 30, 3, attributes=codec), invalid),
            f"{name} of nothing": (batch(b"", 3, attributes=codec), invalid),
        }
    return {name: (raw if raw is None else bytes(raw), code) for name, (raw, code) in found.items()}


LIES = lies()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One appliance for the file; at its end no process was restarted, and none wrote a traceback."""
    appliance = Appliance(
        tmp_path_factory.mktemp("hostile-produce") / "data",
        settings={"max.decompressed.message.bytes": DECOMPRESSED_MAX},
    )
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        with undisturbed(appliance):
            yield appliance
    finally:
        appliance.stop()


def log_end(broker: Appliance) -> int:
    with WireSocket(broker.port) as connection:
        found = list(parse_batches(fetch(connection, TOPIC, 0, offset=0, max_bytes=1 << 26)))
    return found[-1].last_offset + 1 if found else 0


@pytest.mark.parametrize("name", LIES)
def test_batch_that_lies_is_refused_with_its_code_and_not_appended(broker: Appliance, name: str) -> None:
    raw, code = LIES[name]
    before = log_end(broker)
    with WireSocket(broker.port) as connection:
        refused = produce(connection, TOPIC, raw)
        assert ErrorCode(refused.error).name == code.name, refused.message
        assert refused.base_offset == -1
        # The connection goes on, and so does the log, at the very next offset.
        taken = produce(connection, TOPIC, bytes(batch()))
    assert (taken.error, taken.base_offset) == (0, before)


@pytest.mark.parametrize("name", ["bad crc", "magic 0", "count too high", "gzip bomb"])
def test_bad_batch_without_acks_closes_the_connection(broker: Appliance, name: str) -> None:
    raw, _ = LIES[name]
    with WireSocket(broker.port) as connection:
        connection.send(produce_frame(TOPIC, raw, acks=0))
        assert connection.ends_without_an_answer()


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_that_mean_nothing_are_refused(broker: Appliance, acks: int) -> None:
    with WireSocket(broker.port) as connection:
        assert produce(connection, TOPIC, bytes(batch()), acks=acks).error == ErrorCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize("partition", [-1, 1, (1 << 31) - 1, -(1 << 31)])
def test_partition_that_is_not_there_is_unknown(broker: Appliance, partition: int) -> None:
    with WireSocket(broker.port) as connection:
        answer = produce(connection, TOPIC, bytes(batch()), partition=partition)
    assert answer.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("topic", ["", ".", "..", "../../etc", "a/b", "ä", "x" * 30_000, "\x00"])
def test_topic_name_that_cannot_be_is_unknown(broker: Appliance, topic: str) -> None:
    with WireSocket(broker.port) as connection:
        assert produce(connection, topic, bytes(batch())).error in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )


@pytest.mark.parametrize("codec", CODECS)
def test_bombs_take_memory_up_to_the_limit_and_give_it_back(broker: Appliance, codec: Codec) -> None:
    raw, _ = LIES[f"{codec.name.lower()} bomb"]
    worker = psutil.Process(broker.pids("ioproc")[0])
    with WireSocket(broker.port) as connection:
        produce(connection, TOPIC, raw)
        _reset_peak(worker.pid)
        before = worker.memory_info().rss
        for _ in range(10):
            produce(connection, TOPIC, raw)
    assert _peak_bytes(worker.pid) - before < BOMB_GROWTH_BYTES
    assert worker.memory_info().rss - before < DECOMPRESSED_MAX


def _reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # proc(5): VmHWM begins anew


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


class Idempotent:
    """A producer that says which sequence it likes."""

    def __init__(self, broker: Appliance, connection: WireSocket) -> None:
        self.identity, self.epoch = new_producer_id(broker.port)
        self._connection = connection

    def send(self, sequence: int, *, count: int = 3, epoch: int | None = None) -> Produced:
        raw = batch(
            records(count),
            count,
            producer_id=self.identity,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
        )
        return produce(self._connection, TOPIC, bytes(raw))


@pytest.fixture
def idempotent(broker: Appliance) -> Iterator[Idempotent]:
    with WireSocket(broker.port) as connection:
        yield Idempotent(broker, connection)


def test_sequence_sent_again_is_answered_as_it_was(idempotent: Idempotent) -> None:
    first = [idempotent.send(3 * n) for n in range(5)]
    assert [answer.error for answer in first] == [0] * 5
    assert [idempotent.send(3 * n) for n in range(5)] == first


def test_sequence_with_a_gap_is_out_of_order(idempotent: Idempotent) -> None:
    assert idempotent.send(0).error == 0
    assert idempotent.send(6).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert idempotent.send(3).error == 0


def test_sequence_older_than_the_five_remembered_is_not_appended(idempotent: Idempotent) -> None:
    for number in range(7):
        assert idempotent.send(3 * number).error == 0
    assert idempotent.send(0).error in (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    )


def test_sequence_that_overlaps_the_last_batch_is_not_appended(idempotent: Idempotent) -> None:
    assert idempotent.send(0).error == 0
    assert idempotent.send(1).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert idempotent.send(0, count=2).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_older_epoch_is_fenced_and_a_newer_one_begins_at_zero(idempotent: Idempotent) -> None:
    newer = idempotent.epoch + 1
    assert idempotent.send(0).error == 0
    assert idempotent.send(3, epoch=newer).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert idempotent.send(0, epoch=newer).error == 0
    assert idempotent.send(3).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert idempotent.send(3, epoch=newer).error == 0


def test_sequence_wraps_after_its_largest(idempotent: Idempotent) -> None:
    # A producer nobody knows may begin anywhere: its state may have been forgotten.
    assert idempotent.send((1 << 31) - 2).error == 0
    assert idempotent.send(1).error == 0


def test_negative_epoch_and_largest_ids_break_nothing(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        for identity, epoch, sequence in ((5, -1, 0), (-2, 0, 0), ((1 << 63) - 1, 32767, 0), (-1, 5, 7)):
            raw = batch(producer_id=identity, producer_epoch=epoch, base_sequence=sequence)
            assert ErrorCode(produce(connection, TOPIC, bytes(raw)).error) in (
                ErrorCode.NONE,
                ErrorCode.INVALID_RECORD,
                ErrorCode.INVALID_PRODUCER_EPOCH,
            )
        assert produce(connection, TOPIC, encode_batch([Record(b"sound")])).error == 0
