"""A forwarder beside real logs and a real image: the test plays the workers, and says when they answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast
from uuid import UUID

from appliance.channels.metadata_image import ImageReader
from appliance.clock import ManualClock
from appliance.cluster import (
    DELAYED_CANCELS,
    DELAYED_PREFIX,
    DELAYED_STATE,
    DELAYED_TRANSACTIONS,
    BrokerSlot,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from appliance.config import Settings
from appliance.config.sections.services import INDEX_DIRECTORY, ServicesSettings
from appliance.delivery.due import CANCEL, ID
from appliance.delivery.levels import CANCELS, EXACT, TRANSACTIONS
from appliance.delivery.waiting import Origin, Waiting
from appliance.errors import RejectedRequest
from appliance.log.chunks import read_chunks
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.partition_access.access import Done, PartitionAccess, Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.record import Record, encode_batch
from appliance.services.delay_topics import DelayTopics
from appliance.services.deliveries import Counts
from appliance.services.forwarder import Forwarder
from appliance.services.overdue_rate import OverdueRate
from appliance.services.progress import Progress, decode
from appliance.services.state_log import PAUSE_MS
from tests.log.batches import marker, open_log, read_all

TOPIC = "t"
TOPIC_ID = UUID(int=5)
LEVELS = ("5s", "10s")
EXACT_LEVELS = ("10s", "1m", "1h")

Name = tuple[str, int]
_NO_ORIGIN = Origin()


class Logs:
    """What a forwarder uses of `PartitionAccess`, over logs of this process."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self._directory = directory
        self._clock = clock
        self._logs: dict[Name, PartitionLog] = {}
        self._answers: deque[tuple[Name, Callable[[], None]]] = deque()
        self._starts: dict[Name, int] = {}
        self.settings: dict[str, LogSettings] = {}
        self.leaderless: set[Name] = set()
        self.uncommitted: set[str] = set()
        """Topics of which nothing is committed."""
        self.slow: set[Name] = set()
        """Partitions whose appends are not answered yet."""
        self.lost: set[str] = set()
        """Topics whose appends succeed, and are answered as if their outcome was not known."""
        self.refused: Callable[[LogPlace, bytes], int] = lambda _place, _batch: 0
        """Gives the error code with which a batch is refused; 0: append it."""

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        name = topic, partition
        if name not in self._logs:
            directory = self._directory / f"{topic}-{partition}"
            directory.mkdir(exist_ok=True)
            self._logs[name] = open_log(
                directory, settings=self.settings.get(topic, LogSettings()), clock=self._clock
            )
        return self._logs[name]

    def answer(self) -> bool:
        """Answer what was asked; return whether there was something."""
        ready = [each for each in self._answers if each[0] not in self.slow]
        for each in ready:
            self._answers.remove(each)
            each[1]()
        return bool(ready)

    # As `PartitionAccess`

    def serves(self, place: LogPlace) -> bool:
        return (place.topic, place.partition) not in self.leaderless

    def log_end(self, place: LogPlace) -> int:
        return self.log(place.topic, place.partition).log_end_offset

    def high_watermark(self, place: LogPlace) -> int:
        return 0 if place.topic in self.uncommitted else self.log_end(place)

    def log_start(self, place: LogPlace) -> int:
        return self._starts.get((place.topic, place.partition), 0)

    def last_stable_offset(self, place: LogPlace) -> int:
        return self.log(place.topic, place.partition).last_stable_offset

    def append(self, place: LogPlace, batch: bytes, done: Done, *, origin: AppendOrigin) -> bool:
        error = self.refused(place, batch)
        try:
            if not error:
                log = self.log(place.topic, place.partition)
                log.append(memoryview(batch), leader_epoch=0, origin=origin)
        except RejectedRequest as rejected:
            error = int(rejected.code)
        if not error and place.topic in self.lost:
            error = int(ErrorCode.REQUEST_TIMED_OUT)
        self._answers.append(((place.topic, place.partition), partial(done, error)))
        return True

    def read(
        self,
        place: LogPlace,
        offset: int,
        done: Callable[[Read], None],
        *,
        bytes_max: int,
        is_committed: bool = False,
    ) -> bool:
        log = self.log(place.topic, place.partition)
        high_watermark = log.log_end_offset
        end = log.last_stable_offset if is_committed else high_watermark
        answer = Read(error=int(ErrorCode.OFFSET_OUT_OF_RANGE), high_watermark=high_watermark)
        log_start = self.log_start(place)
        answer = answer._replace(log_start=log_start)
        if log_start <= offset <= high_watermark:
            aborted = tuple(log.aborted_transactions(offset, upper_bound=end)) if is_committed else ()
            answer = Read(high_watermark=high_watermark, log_start=log_start, end=end, aborted=aborted)
            piece = log.read(offset, max_bytes=bytes_max, upper_bound=end)
            if piece.length_bytes:
                path = log.segment_path(piece.segment_base_offset)
                to = piece.position + piece.length_bytes
                answer = answer._replace(chunks=tuple(read_chunks(path, piece.position, to, may_be_cut=True)))
        self._answers.append((("", 0), partial(done, answer)))
        return True

    def delete_records(self, place: LogPlace, offset: int, done: Done) -> bool:
        self._starts[place.topic, place.partition] = offset
        self._answers.append((("", 0), partial(done, 0)))
        return True


class _Image:
    """The reader of an image that the test made."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def current(self) -> ClusterImage:
        return self._image


def _topic(name: str, topic_id: UUID, partitions: int, configs: dict[str, str] | None = None) -> TopicImage:
    made = tuple(PartitionImage(each, each, 1, 0, 0, (0,), (0,)) for each in range(partitions))
    return TopicImage(name, topic_id, made, configs or {})


class Delivering:
    """TOPIC has four partitions; each internal topic has one."""

    def __init__(self, directory: Path, *, configs: dict[str, str] | None = None) -> None:
        self.clock = ManualClock()
        self.logs = Logs(directory, self.clock)
        self.lines: list[str] = []
        self.counts = Counts()
        self.overdue_rate: OverdueRate | None = None
        self._producer_ids = count(1_000)
        (directory / INDEX_DIRECTORY).mkdir()
        self._settings = Settings(
            data_dir=directory,
            services=ServicesSettings(processes=1, delay_levels=LEVELS, delay_exact_levels=EXACT_LEVELS),
        )
        levels = (*LEVELS, *(f"{EXACT}{level}" for level in EXACT_LEVELS), TRANSACTIONS, CANCELS)
        names = [DELAYED_STATE, *(f"{DELAYED_PREFIX}{level}" for level in levels)]
        topics = {name: _topic(name, UUID(int=100 + number), 1) for number, name in enumerate(names)}
        topics[TOPIC] = _topic(TOPIC, TOPIC_ID, 4, configs)
        reader = _Image(ClusterImage(1, "c", 0, 1, (BrokerSlot(0, "h", 9092),), topics))
        self._topics = DelayTopics(self._settings, cast(ImageReader, reader), self.clock)
        self._topics.follow_image()
        self.forwarder = self.new_forwarder()

    def new_forwarder(self) -> Forwarder:
        """Return one that begins with what the logs have, as after a death of the process."""
        self.forwarder = Forwarder(
            0,
            self._topics,
            cast(PartitionAccess, self.logs),
            clock=self.clock,
            take_producer_id=lambda: next(self._producer_ids),
            counts=self.counts,
            complain=self.lines.append,
            overdue_rate=self.overdue_rate,
        )
        return self.forwarder

    def store(
        self,
        *values: bytes,
        level: str = "5s",
        due_in_ms: int = 5_000,
        partition: int = 0,
        names: tuple[bytes, ...] = (),
        first_offset: int = 0,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        origin: Origin = _NO_ORIGIN,
    ) -> None:
        """Store records that are due in `due_in_ms`, in one batch. `names`: their ids."""
        now_ms = self.clock.now_ms()
        log = self.logs.log(f"{DELAYED_PREFIX}{level}")
        made = []
        for at, value in enumerate(values):
            record = Record(value, headers=((ID, names[at]),) if names else headers)
            due_ms = now_ms + due_in_ms
            made.append(Waiting(TOPIC_ID, partition, first_offset + at, due_ms, origin, record))
        log.append(memoryview(encode_batch([each.to_record(now_ms) for each in made])), leader_epoch=0)

    def _cancellation(self, name: bytes, offset: int) -> Record:
        now_ms = self.clock.now_ms()
        record = Record(None, headers=((CANCEL, name),))
        return Waiting(TOPIC_ID, 0, offset, now_ms, Origin(), record).to_record(now_ms)

    def cancel(self, name: bytes, *, offset: int) -> None:
        """Cancel what has the id and came before `offset`."""
        log = self.logs.log(DELAYED_CANCELS)
        log.append(memoryview(encode_batch([self._cancellation(name, offset)])), leader_epoch=0)

    def cancel_in_transaction(self, name: bytes, *, offset: int, producer_id: int) -> None:
        batch = encode_batch(
            [self._cancellation(name, offset)],
            attributes=TRANSACTIONAL,
            producer_id=producer_id,
            producer_epoch=0,
        )
        self.logs.log(DELAYED_TRANSACTIONS).append(
            memoryview(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR, transaction_verified=True
        )

    def store_in_transaction(
        self, *values: bytes, producer_id: int, due_in_ms: int = 5_000, partition: int = 0
    ) -> None:
        """Store records of an open transaction, as network processes do."""
        now_ms = self.clock.now_ms()
        log = self.logs.log(DELAYED_TRANSACTIONS)
        origin = Origin(producer_id, 0, 0)
        made = [
            Waiting(TOPIC_ID, partition, number, now_ms + due_in_ms, origin, Record(value)).to_record(now_ms)
            for number, value in enumerate(values)
        ]
        batch = encode_batch(made, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0)
        log.append(
            memoryview(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR, transaction_verified=True
        )

    def end_transaction(self, *, producer_id: int, committed: bool) -> None:
        log = self.logs.log(DELAYED_TRANSACTIONS)
        log.append(
            marker(committed=committed, producer_id=producer_id),
            leader_epoch=0,
            origin=AppendOrigin.COORDINATOR,
        )

    def run(self) -> None:
        """Take turns and answer, until nothing happens at this time."""
        for _ in range(100):
            self.forwarder.turn()
            if not self.logs.answer():
                return

    def pass_ms(self, duration_ms: int, *, step_ms: int = PAUSE_MS) -> None:
        """Let time pass, with turns in between."""
        for _ in range(0, duration_ms, step_ms):
            self.run()
            self.clock.advance(step_ms)
        self.run()

    def delivered(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in read_all(self.logs.log(TOPIC, partition))]

    def progress(self) -> Progress:
        """Return what the last state record says."""
        value = read_all(self.logs.log(DELAYED_STATE))[-1].value
        assert value is not None
        return decode(value)

    def stored(self, level: str) -> list[Record]:
        return read_all(self.logs.log(f"{DELAYED_PREFIX}{level}"))
