"""What a network process notes of observed topics, and that it stays small and harmless."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from appliance.channels.request_channel import Op, ResponseFlag
from appliance.channels.roles import Role, RoleKind
from appliance.clock import ManualClock
from appliance.cluster import OBSERVATIONS, BrokerSlot, ClusterImage, PartitionImage, TopicImage
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import BufferPool
from appliance.message_audit.observation import Observation, decode
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import decode_records
from appliance.requests.log_handlers.fetch_item import FetchItem
from appliance.requests.observer import ATTEMPTS_MAX, FLUSH_MS, RANGES_MAX, READERS_MAX, Observer
from appliance.requests.session import Session
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.worker_lines import WorkerClient

WORKER = Role(RoleKind.IOPROC, 0)
ROW, PLAIN_ROW = 3, 4
ANSWER_BYTES = 500
TOPIC_ID = UUID(int=9)


class Lines:
    """The ring to one worker, which answers when the test says so."""

    def __init__(self) -> None:
        self.is_down = False
        self.blocks: list[tuple[int, int]] = []

    def enter(self, _listener: object) -> int:
        return 1

    def leave(self, _listener: object) -> None:
        """Nothing is kept."""

    def is_up(self, _worker: Role) -> bool:
        return not self.is_down

    def place(self, _worker: Role, operation: tuple[int, ...]) -> bool:
        _, _, _, _, _, _, _, _, position, length_bytes, *_ = operation
        self.blocks.append((position, length_bytes))
        return True


class Observing:
    def __init__(self) -> None:
        self.memory = bytearray(1 << 20)
        self.pool = BufferPool(memoryview(self.memory))
        self.lines = Lines()
        self.clock = ManualClock(monotonic_ns=1)
        self.timers = Timers(self.clock.monotonic_ns)
        self.has_topic = True
        self.woken = self.connections = 0
        route = SimpleNamespace(worker=WORKER, row=7, incarnation=1)
        topic = SimpleNamespace(partition=lambda _: route)

        def wake() -> None:
            self.woken += 1

        self.observer = Observer(
            cast(
                TopicRoutes,
                SimpleNamespace(
                    by_name=lambda name: topic if self.has_topic and name == OBSERVATIONS else None
                ),
            ),
            cast(WorkerClient, self.lines),
            pool=self.pool,
            clock=self.clock,
            timers=self.timers,
            bells=[cast(Any, SimpleNamespace(wake=wake))],
        )
        self.observer.look(image({"audit.enable": "true"}))

    def session(self, client: str = "c") -> Session:
        self.connections += 1
        session = Session(
            connection_id=self.connections,
            number=1,
            slot=0,
            listener="PLAINTEXT",
            peer_host="h",
            peer_port=1,
            now_ns=0,
        )
        session.name_client(client)
        return session

    def produce(self, base: int, end: int, session: Session, *, flags: int = 0) -> None:
        answer = (int(Op.PRODUCE), flags, 0, 1, 0, ROW, base, 0, 0, 0, 100, 0, 0, end)
        self.observer.produced(answer, session)

    def fetch(
        self,
        offset: int,
        session: Session,
        *,
        row: int = ROW,
        error: int = 0,
        high_watermark: int = 1_000,
        bytes_max: int = 1_000,
    ) -> None:
        item = SimpleNamespace(
            route=SimpleNamespace(row=row),
            wanted=SimpleNamespace(fetch_offset=offset, partition_max_bytes=bytes_max),
            error=error,
            high_watermark=high_watermark,
        )
        self.observer.fetching([cast(FetchItem, item)], session, ANSWER_BYTES)

    def flush(self, *, answers: bool = True, error: int = 0) -> Observation | None:
        """Let the next flush come; return what it has written."""
        self.clock.advance(FLUSH_MS)
        self.timers.run_due(self.clock.monotonic_ns())
        if not self.lines.blocks:
            return None
        position, length_bytes = self.lines.blocks.pop()
        (record,) = decode_records(bytes(self.memory[position : position + length_bytes]))
        if answers:
            self.observer.answered((int(Op.PRODUCE), 0, error, 1))
        return decode(record.value)


def image(configs: dict[str, str]) -> ClusterImage:
    topics = {
        "t": TopicImage("t", TOPIC_ID, (PartitionImage(0, ROW, 1, 0, 0, (0,), (0,)),), configs),
        "plain": TopicImage("plain", UUID(int=8), (PartitionImage(0, PLAIN_ROW, 1, 0, 0, (0,), (0,)),), {}),
    }
    return ClusterImage(1, "c", 0, 1, (BrokerSlot(0, "h", 9092),), topics)


@pytest.fixture
def seen() -> Observing:
    return Observing()


def test_only_observed_topics_have_rows(seen: Observing) -> None:
    assert seen.observer.rows == {ROW: (TOPIC_ID, 0)}
    seen.observer.look(image({}))
    assert seen.observer.rows == {}
    seen.fetch(5, seen.session())
    assert not seen.timers.any


def test_batches_of_one_client_that_follow_each_other_are_one_range(seen: Observing) -> None:
    first, second = seen.session("a"), seen.session("b")
    began_ms = seen.clock.now_ms()
    seen.produce(0, 10, first)
    seen.clock.advance(20)
    seen.produce(10, 15, first)
    seen.produce(15, 20, second)
    seen.produce(10, 15, first, flags=int(ResponseFlag.DUPLICATE))
    found = seen.flush()
    assert found is not None
    assert [
        (each.first, each.end, each.first_ms - began_ms, each.last_ms - began_ms, each.client)
        for each in found.produced
    ] == [
        (0, 10 + 5, 0, 20, "a"),
        (15, 20, 20, 20, "b"),
    ]
    assert found.produced[0].topic_id == TOPIC_ID
    assert seen.woken == 1


def test_a_fetch_shows_what_the_client_has_read_before(seen: Observing) -> None:
    reader, other = seen.session("r"), seen.session("o")
    for offset in (5, 5, 9):
        seen.fetch(offset, reader)
    seen.fetch(7, other)
    seen.fetch(2, reader)
    seen.fetch(3, reader, row=PLAIN_ROW)
    found = seen.flush()
    assert found is not None
    assert [(each.first, each.end, each.client) for each in found.fetched] == [(5, 9, "r")]
    assert seen.flush() is None


def test_a_fetch_says_how_much_its_answer_had_at_most(seen: Observing) -> None:
    reader = seen.session("r")
    seen.fetch(0, reader, bytes_max=100)
    seen.fetch(900, reader, bytes_max=-1)
    seen.fetch(901, reader, bytes_max=1 << 30)
    seen.fetch(902, reader)
    found = seen.flush()
    assert found is not None
    assert [(each.first, each.bytes_max) for each in found.fetched] == [
        (0, 100),
        (900, 1),
        (901, ANSWER_BYTES),
    ]


def test_consumers_of_one_name_are_told_apart(seen: Observing) -> None:
    first, second = seen.session("r"), seen.session("r")
    seen.fetch(100, first)
    seen.fetch(0, second)
    seen.fetch(130, first)
    seen.fetch(7, second)
    found = seen.flush()
    assert found is not None
    assert [(each.first, each.end) for each in found.fetched] == [(100, 130), (0, 7)]


def test_nobody_reads_what_is_not_in_the_log(seen: Observing) -> None:
    reader = seen.session("r")
    seen.fetch(3, reader, high_watermark=5)
    seen.fetch(900, reader, error=int(ErrorCode.OFFSET_OUT_OF_RANGE), high_watermark=5)
    seen.fetch(4, reader, high_watermark=5)
    assert seen.flush() is None, "where it goes on from shows nothing"
    seen.fetch(9, reader, high_watermark=7)
    found = seen.flush()
    assert found is not None
    assert [(each.first, each.end) for each in found.fetched] == [(4, 7)], "not above the high watermark"


def test_readers_of_a_topic_stay_known_while_other_topics_change(seen: Observing) -> None:
    reader = seen.session("r")
    seen.fetch(3, reader)
    before = image({"audit.enable": "true"})
    plain = msgspec.structs.replace(before.topics["plain"], configs={"trace.enable": "true"})
    seen.observer.look(msgspec.structs.replace(before, topics={**before.topics, "plain": plain}))
    assert set(seen.observer.rows) == {ROW, PLAIN_ROW}
    seen.fetch(5, reader)
    found = seen.flush()
    assert found is not None
    assert [(each.first, each.end) for each in found.fetched] == [(3, 5)]


@pytest.mark.parametrize("ends", ["refused", "lost"])
def test_what_the_log_did_not_take_is_counted_as_lost(seen: Observing, ends: str) -> None:
    seen.produce(0, 1, seen.session("a"))
    seen.produce(1, 2, seen.session("b"))
    if ends == "refused":
        seen.flush(error=int(ErrorCode.NOT_ENOUGH_REPLICAS))
    else:
        seen.flush(answers=False)
        seen.observer.worker_lost(WORKER)
    seen.produce(2, 3, seen.session())
    found = seen.flush()
    assert found is not None
    assert (len(found.produced), found.lost) == (1, 2)
    seen.produce(3, 4, seen.session())
    found = seen.flush()
    assert found is not None
    assert found.lost == 0


def test_what_does_not_fit_is_counted_and_what_cannot_be_sent_is_not_kept(seen: Observing) -> None:
    sessions = [seen.session("a"), seen.session("b")]
    for number in range(RANGES_MAX + 30):
        seen.produce(number, number + 1, sessions[number % 2])
    found = seen.flush()
    assert found is not None
    assert (len(found.produced), found.lost) == (RANGES_MAX, 30)
    seen.has_topic = False
    seen.produce(0, 1, sessions[0])
    for _ in range(ATTEMPTS_MAX + 1):
        assert seen.flush() is None
    seen.has_topic, seen.lines.is_down = True, True
    seen.produce(1, 2, sessions[0])
    for _ in range(ATTEMPTS_MAX + 1):
        assert seen.flush() is None
    assert not seen.timers.any
    seen.lines.is_down = False
    seen.produce(2, 3, sessions[0])
    found = seen.flush()
    assert found is not None
    assert (len(found.produced), found.lost) == (1, 2)


def test_what_is_seen_before_the_topic_is_there_is_written_down_when_it_is(seen: Observing) -> None:
    session = seen.session()
    seen.has_topic = False
    seen.produce(0, 1, session)
    assert seen.flush() is None
    seen.produce(1, 2, session)
    seen.fetch(0, session)
    seen.fetch(2, session)
    assert seen.flush() is None
    seen.has_topic = True
    found = seen.flush()
    assert found is not None
    assert [(each.first, each.end) for each in found.produced] == [(0, 2)]
    assert [(each.first, each.end) for each in found.fetched] == [(0, 2)]
    assert found.lost == 0
    assert seen.woken >= 3, "the services process creates the topic"


def test_one_batch_is_in_flight_and_its_block_comes_back(seen: Observing) -> None:
    free_bytes = seen.pool.statistics().free_bytes
    seen.produce(0, 1, seen.session())
    assert seen.flush(answers=False) is not None
    seen.produce(1, 2, seen.session())
    assert seen.flush() is None, "the batch before is not answered"
    seen.observer.worker_lost(Role(RoleKind.IOPROC, 1))
    assert seen.pool.statistics().free_bytes < free_bytes
    seen.observer.worker_lost(WORKER)
    found = seen.flush()
    assert found is not None
    assert [each.first for each in found.produced] == [1]
    assert seen.pool.statistics().free_bytes == free_bytes


def test_readers_are_bounded(seen: Observing) -> None:
    sessions = [seen.session() for _ in range(READERS_MAX + 5)]
    for each in sessions:
        seen.fetch(1, each)
    seen.fetch(9, sessions[0])
    assert seen.flush() is None, "the first one is forgotten"
    seen.fetch(9, sessions[READERS_MAX])
    assert seen.flush() is not None


def test_a_defect_costs_names_and_nothing_else(seen: Observing, caplog: pytest.LogCaptureFixture) -> None:
    seen.observer.produced((1, 2), seen.session())
    seen.observer.fetching([cast(FetchItem, object())], seen.session(), ANSWER_BYTES)
    assert caplog.text.count("internal error in observing") == 1
    seen.produce(0, 1, seen.session())
    assert seen.flush() is not None
