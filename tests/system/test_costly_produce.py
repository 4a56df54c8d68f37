"""Batches that cost a worker long hold up whoever sends them, and nobody else."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import MIB, create_topic, produce, produce_frame, read_produced, wait_until

HOSTILE_CONNECTIONS = 3
REQUESTS_EACH = 64
GROWN_BYTES = 30 * MIB  # under 32 times max.message.bytes, which is a little over 1 MiB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("costly") / "data")
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def grown(length_bytes: int, codec: Codec = Codec.ZSTD) -> bytes:
    """A batch of one record that grows to so many bytes."""
    now_ms = time.time_ns() // 1_000_000
    return bytes(encode_batch([Record(bytes(length_bytes), timestamp_ms=now_ms)], codec=codec))


def test_an_ordinary_record_does_not_wait_for_the_costly_batches_of_others(broker: Appliance) -> None:
    assert create_topic(broker.port, "costly") == ErrorCode.NONE
    assert create_topic(broker.port, "ordinary") == ErrorCode.NONE
    burst = b"".join(
        produce_frame("costly", grown(GROWN_BYTES), correlation_id=number) for number in range(REQUESTS_EACH)
    )
    with ExitStack() as stack:
        hostile = [
            stack.enter_context(WireSocket(broker.port, timeout_s=120)) for _ in range(HOSTILE_CONNECTIONS)
        ]
        for connection in hostile:
            connection.send(burst)
        with WireSocket(broker.port, timeout_s=60) as good:
            for _ in range(5):
                assert produce(good, "ordinary", grown(10)).error == ErrorCode.NONE
            appended = produce(good, "costly", grown(10)).base_offset
    assert appended < HOSTILE_CONNECTIONS * REQUESTS_EACH // 2

    # They have left: what they still had waiting is dropped.
    own = 1
    with WireSocket(broker.port, timeout_s=60) as good:

        def stands_still() -> bool:
            nonlocal appended, own
            before, appended = appended, produce(good, "costly", grown(10)).base_offset
            own += 1
            time.sleep(0.5)
            return appended == before + 1

        wait_until(stands_still, "nobody works for clients that have left")
    assert appended + 1 - own < HOSTILE_CONNECTIONS * REQUESTS_EACH


def test_a_record_behind_a_costly_batch_of_the_same_connection_stays_behind_it(broker: Appliance) -> None:
    assert create_topic(broker.port, "order") == ErrorCode.NONE
    frames = [
        produce_frame("order", grown(length), correlation_id=number)
        for number, length in enumerate([GROWN_BYTES, 10, GROWN_BYTES, 10])
    ]
    with WireSocket(broker.port, timeout_s=60) as connection:
        connection.send(b"".join(frames))
        answers = [connection.read_frame() for _ in frames]
    assert [struct.unpack_from(">i", answer)[0] for answer in answers] == [0, 1, 2, 3]
    assert [read_produced(answer).base_offset for answer in answers] == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_batch_may_grow_to_32_times_the_largest_message_and_no_further(
    broker: Appliance, codec: Codec
) -> None:
    topic = f"grown-{codec.name.lower()}"
    configs = {"max.message.bytes": str(MIB), "decompressed.ratio.max": "32"}
    assert create_topic(broker.port, topic, configs=configs) == ErrorCode.NONE
    with WireSocket(broker.port, timeout_s=60) as connection:
        assert produce(connection, topic, grown(31 * MIB, codec)).error == ErrorCode.NONE
        assert produce(connection, topic, grown(33 * MIB, codec)).error == ErrorCode.MESSAGE_TOO_LARGE
        assert produce(connection, topic, grown(10, codec)).base_offset == 1


def test_costly_batches_that_wait_when_their_worker_is_killed_are_answered(broker: Appliance) -> None:
    assert create_topic(broker.port, "killed") == ErrorCode.NONE
    frames = [
        produce_frame("killed", grown(GROWN_BYTES), correlation_id=number) for number in range(REQUESTS_EACH)
    ]
    with WireSocket(broker.port, timeout_s=60) as connection:
        connection.send(b"".join(frames))
        first = read_produced(connection.read_frame())
        broker.kill_role("ioproc")
        answers = [read_produced(connection.read_frame()) for _ in frames[1:]]
    acknowledged = [first.base_offset] + [each.base_offset for each in answers if not each.error]
    assert ErrorCode.REQUEST_TIMED_OUT in [each.error for each in answers]
    with WireSocket(broker.port, timeout_s=60) as probe:

        def is_served() -> bool:
            return not produce(probe, "killed", grown(10)).error

        wait_until(is_served, "the worker serves again")
        assert produce(probe, "killed", grown(10)).base_offset > max(acknowledged)
