"""An answer ends with its segment, so a fetch that wants more than is left of a closed one is not kept waiting.

Whoever would have to wait here waits longer than the test does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance.clock import SystemClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.record import Record, encode_batch
from tests.log.batches import batch_of
from tests.support.broker import Appliance
from tests.support.raw_fetch import ask_for, fetch, parse_batches, read_records
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, produce, wait_until

TOPIC: Final = "ends"
SEGMENT_BYTES: Final = 1 << 20
BATCH: Final = encode_batch([Record(bytes(1_000)) for _ in range(20)])
BATCHES: Final = 170  # of three segments and a piece
FAR_MS: Final = 600_000
WAIT_MS: Final = 1_000
MORE_THAN_THERE_IS: Final = 32 << 20
ISOLATIONS: Final = (0, 1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data")
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC, configs={"segment.bytes": str(SEGMENT_BYTES)}) == 0
        fill(appliance, BATCHES)
        yield appliance
    finally:
        appliance.stop()


def fill(broker: Appliance, count: int) -> None:
    with WireSocket(broker.port) as producer:
        for _ in range(count):
            assert produce(producer, TOPIC, BATCH).error == 0


def active_segment(broker: Appliance) -> int:
    """Its base offset."""
    return max(int(path.stem) for path in (broker.data_dir / "slot-0" / f"{TOPIC}-0").glob("*.log"))


def registrations(broker: Appliance) -> int:
    """How many fetches have waited in the purgatory since it started."""
    command = [sys.executable, "-m", "appliance", "status", "--data-dir", str(broker.data_dir), "--json"]
    status = json.loads(subprocess.check_output(command))
    return sum(row["requests"] for row in status["processes"] if row["role"] == "purgatory")


def read_on(broker: Appliance, offset: int, until: int, *, max_bytes: int, isolation: int) -> list[int]:
    """Base offsets of every batch from `offset` on, read as who wants more than there is in any segment."""
    found: list[int] = []
    with WireSocket(broker.port) as connection:
        while offset < until:
            records = fetch(
                connection,
                TOPIC,
                0,
                offset=offset,
                max_bytes=max_bytes,
                min_bytes=MORE_THAN_THERE_IS,
                max_wait_ms=FAR_MS,
                isolation=isolation,
            )
            whole = list(parse_batches(records))
            found += [batch.base_offset for batch in whole]
            offset = whole[-1].last_offset + 1
    return found


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("max_bytes", [100_000, 2 * SEGMENT_BYTES])
def test_what_is_left_of_a_closed_segment_is_answered_at_once(
    broker: Appliance, isolation: int, max_bytes: int
) -> None:
    """Whole segments from their owner, pieces of them from where the last answer ended."""
    active = active_segment(broker)
    assert active > 0
    assert read_on(broker, 0, active, max_bytes=max_bytes, isolation=isolation) == list(range(0, active, 20))


def test_a_reader_who_was_in_the_segment_before_it_was_closed_is_not_kept_waiting(broker: Appliance) -> None:
    """What led him knew of no later segment."""
    offset = active_segment(broker)
    with WireSocket(broker.port) as connection:
        first = parse_batches(fetch(connection, TOPIC, 0, offset=offset, max_bytes=100_000))
        following = list(first)[-1].last_offset + 1
    fill(broker, SEGMENT_BYTES // len(BATCH) + 1)
    active = active_segment(broker)
    assert active > following
    found = read_on(broker, following, active, max_bytes=100_000, isolation=0)
    assert found == list(range(following, active, 20))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_at_the_log_end_and_in_its_segment_a_fetch_waits(broker: Appliance, isolation: int) -> None:
    active, end = active_segment(broker), BATCHES * 20
    with WireSocket(broker.port) as connection:
        for offset, min_bytes in ((end, 1), (active, MORE_THAN_THERE_IS), (end - 20, MORE_THAN_THERE_IS)):
            before = registrations(broker)
            fetch(
                connection,
                TOPIC,
                0,
                offset=offset,
                max_bytes=MORE_THAN_THERE_IS,
                min_bytes=min_bytes,
                max_wait_ms=WAIT_MS,
                isolation=isolation,
            )
            assert registrations(broker) == before + 1, "it has waited, once"


def ask_for_more_than_there_is(connection: WireSocket, offset: int, **limits: int) -> None:
    ask_for(
        connection,
        TOPIC,
        0,
        offset=offset,
        max_bytes=MORE_THAN_THERE_IS,
        min_bytes=MORE_THAN_THERE_IS,
        max_wait_ms=FAR_MS,
        **limits,
    )


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_segment_that_is_closed_ends_the_wait_for_more_of_it(broker: Appliance, isolation: int) -> None:
    active = active_segment(broker)
    with WireSocket(broker.port) as connection:
        before = registrations(broker)
        ask_for_more_than_there_is(connection, active, isolation=isolation)
        wait_until(lambda: registrations(broker) > before, "it waits")
        fill(broker, SEGMENT_BYTES // len(BATCH) + 1)
        _, records = read_records(connection)
        assert [batch.base_offset for batch in parse_batches(records)] == list(
            range(active, active_segment(broker), 20)
        )


def test_who_wants_more_than_an_answer_may_have_gets_that(broker: Appliance) -> None:
    active = active_segment(broker)
    with WireSocket(broker.port) as connection:
        ask_for_more_than_there_is(connection, active, answer_max_bytes=2 * len(BATCH))
        assert len(list(parse_batches(read_records(connection)[1]))) == 2


def test_who_waits_for_an_open_transaction_registers_once(broker: Appliance) -> None:
    """The high watermark is beyond what he waits for all the time."""
    broker.kill()
    log = PartitionLog.open(
        broker.data_dir / "slot-0" / f"{TOPIC}-0",
        settings=LogSettings(segment_bytes=SEGMENT_BYTES),
        clock=SystemClock(),
    )
    open_from = log.log_end_offset
    batch = batch_of([b"not yet"], attributes=0x10, producer_id=4711, producer_epoch=0, base_sequence=0)
    log.append(batch, leader_epoch=log.latest_epoch, transaction_verified=True)
    log.close(clean=False)
    broker.start()
    with WireSocket(broker.port) as connection:
        before = registrations(broker)
        assert not fetch(
            connection, TOPIC, 0, offset=open_from, min_bytes=1, max_wait_ms=WAIT_MS, isolation=1
        )
        assert registrations(broker) == before + 1
