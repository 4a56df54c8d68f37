"""Who says what it has read last is told at once where its history and the log part (Fetch 12+, diverging epoch)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import create, leaders
from tests.system.raw import produce, wait_until

TOPIC = "parted"
WAITS_LONG_MS: Final = 600_000
AT_ONCE_S: Final = 60.0  # a tenth of what the request may wait
EARLIER, LATER = 3, 2  # records


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """That of the leader. Records 0 to 2 are of the topic's first leader epoch, 3 and 4 of the second."""
    broker = Appliance(tmp_path_factory.mktemp("parted") / "data", slots=2)
    broker.start()
    try:
        create(broker, TOPIC, 1, replicas=2)
        first = leaders(broker, TOPIC)[0]
        write(broker.port + first, EARLIER)
        broker.kill_role(f"ioproc {first}.0")
        wait_until(lambda: leaders(broker, TOPIC)[0] == 1 - first, "led by the other", timeout_s=30)
        port = broker.port + 1 - first
        wait_until(lambda: fetched(port, 0, -1).error_code == 0, "served by the other", timeout_s=30)
        write(port, LATER)
        yield port
    finally:
        broker.stop()


def write(port: int, count: int) -> None:
    with WireSocket(port, timeout_s=30) as connection:
        for number in range(count):
            assert produce(connection, TOPIC, encode_batch([Record(b"%d" % number)])).error == 0


def fetched(port: int, offset: int, read_epoch: int, *, wait_ms: int = 0) -> Any:
    """The partition's answer to a Fetch of at least one byte, without a session."""
    with WireSocket(port, timeout_s=AT_ONCE_S) as connection:
        return partition_of(ask(connection, offset, read_epoch, session=(0, -1), wait_ms=wait_ms))


def partition_of(answer: Any) -> Any:
    """What it says of the partition, None where it does not mention it."""
    return answer.responses[0].partitions[0] if answer.responses else None


def ask(
    connection: WireSocket, offset: int, read_epoch: int, *, session: tuple[int, int], wait_ms: int
) -> Any:
    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=read_epoch,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[wanted])],
        forgotten_topics_data=[],
        rack_id="",
    )
    request.with_header(correlation_id=5, client_id="parted")
    connection.send(request.encode(version=12, header=True, framed=True))
    body = connection.read_frame()
    return FetchResponse.decode(len(body).to_bytes(4) + body, version=12, header=True, framed=True)


@pytest.mark.parametrize(
    ("offset", "read_epoch", "parts"),
    [
        pytest.param(EARLIER + 1, 0, (0, EARLIER), id="read on in an epoch that had ended"),
        pytest.param(EARLIER + LATER + 4, 1, (1, EARLIER + LATER), id="read beyond the log"),
        pytest.param(EARLIER + LATER + 4, 0, (0, EARLIER), id="read beyond the log, in an older epoch"),
    ],
)
def test_reader_of_another_history_is_told_at_once_where_it_parts(
    port: int, offset: int, read_epoch: int, parts: tuple[int, int]
) -> None:
    told = fetched(port, offset, read_epoch, wait_ms=WAITS_LONG_MS)
    assert told.error_code == 0
    assert (told.diverging_epoch.epoch, told.diverging_epoch.end_offset) == parts
    assert not told.records
    assert (told.high_watermark, told.last_stable_offset, told.log_start_offset) == (5, 5, 0)


@pytest.mark.parametrize(("offset", "read_epoch"), [(1, 0), (EARLIER, 0), (EARLIER + 1, 1)])
def test_reader_of_the_same_history_gets_records(port: int, offset: int, read_epoch: int) -> None:
    told = fetched(port, offset, read_epoch, wait_ms=WAITS_LONG_MS)
    assert told.error_code == 0
    assert told.diverging_epoch is None
    assert told.records


def test_reader_at_the_end_waits(port: int) -> None:
    with WireSocket(port, timeout_s=AT_ONCE_S) as connection:
        answer = ask(connection, EARLIER + LATER, 1, session=(0, -1), wait_ms=300)
    told = partition_of(answer)
    assert (told.error_code, told.diverging_epoch, bytes(told.records or b"")) == (0, None, b"")


def test_epoch_that_never_was_is_out_of_range(port: int) -> None:
    assert fetched(port, 1, 9).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_session_mentions_a_partition_that_parts_though_nothing_else_is_new(port: int) -> None:
    with WireSocket(port, timeout_s=AT_ONCE_S) as connection:
        made = ask(connection, EARLIER + LATER, 1, session=(0, 0), wait_ms=0)
        assert made.session_id
        silent = ask(connection, EARLIER + LATER, 1, session=(made.session_id, 1), wait_ms=0)
        assert partition_of(silent) is None
        told = partition_of(
            ask(connection, EARLIER + 1, 0, session=(made.session_id, 2), wait_ms=WAITS_LONG_MS)
        )
        assert (told.diverging_epoch.epoch, told.diverging_epoch.end_offset) == (0, EARLIER)
