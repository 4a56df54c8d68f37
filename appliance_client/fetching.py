"""The partitions that a consumer reads: positions, fetches under way, and what was fetched and not handed out yet.

    fetch ─▶ chunk of batches ─▶ one batch decoded ─▶ records handed out by poll

A partition's next fetch is sent while its last chunk is being handed out: up to two chunks wait. `reading` has the
state of a partition, `decoding` makes records of batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from uuid import UUID

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance_client.connection import Connection, body_cursor
from appliance_client.core import Core, logger
from appliance_client.decoding import sound_bytes, take_from
from appliance_client.errors import ClientError, CorruptRecordsError, NoOffsetError, error_of
from appliance_client.fetch_sizes import answer_bytes, partition_bytes
from appliance_client.kernel import ConsumerRecord
from appliance_client.offset_lookup import OffsetLookup
from appliance_client.options import ConsumerOptions
from appliance_client.reading import Chunk, Reading
from appliance_client.scheduling import Outcome
from appliance_client.values import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from appliance_client.wire import (
    FETCH_BY_ID,
    FetchAnswer,
    FetchWish,
    fetch_request,
    parse_fetch_answer,
)

CHUNKS_MAX: Final = 2
LOCAL_BYTES_MAX: Final = 4 << 20
"""So much is read out of files before others have their turn."""
LOCAL_PAUSE_S: Final = 0.0002
LOCAL_RETRY_S: Final = 0.25
"""A topic that is not known yet is looked for again after this time."""
LOCAL_FULL_S: Final = 10.0
"""Who takes records has the files looked at again; this is for the case that nobody does."""
SHORT_WAIT_MS: Final = 20
"""A fetch waits no longer while another partition of its broker is left out because its chunks are not handed out."""
_TIMES: Final = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
_ASK_BROKER: Final = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.FENCED_LEADER_EPOCH)
"""What files say, and the broker must confirm."""
_MOVED: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
)


class LocalFiles(Protocol):
    """What a face hands in to read files with: `local_logs.LocalLogs`, which the core does not import."""

    news: set[tuple[str, int]]

    def hear(self) -> None: ...

    def keep_only(self, wanted: set[tuple[str, int]]) -> None: ...

    def partition(self, topic: str, partition: int) -> Any: ...

    def rest(self, topic: str, partition: int) -> None: ...


class Fetching:
    """All assigned partitions of a consumer.

    `committed` asks the group where it has come to; None without a group.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        core: Core,
        committed: Callable[[list[TopicPartition]], Any] | None,
    ) -> None:
        self.readings: dict[TopicPartition, Reading] = {}
        self.from_start: frozenset[str] = frozenset()
        """Topics that are read from their start where nothing is committed, whatever auto.offset.reset says."""
        self.most: dict[TopicPartition, int] = {}  # of these, so many records are taken at a time
        self._errors: deque[tuple[ClientError, Reading | None, int]] = deque()
        self.on_news: Callable[[], None] = lambda: None
        """Called when `take` may have something to give."""
        self.on_take: Callable[[], None] = lambda: None
        """Called when records are about to be handed out."""
        self._options = options
        self._core = core
        self._scheduler = core.scheduler
        self._network = core.network
        self._metadata = core.metadata
        self._committed = committed
        self._lookup = OffsetLookup(options, core)
        self._busy: set[int] = set()
        self._turn = 0
        self.local: LocalFiles | None = None
        """Where the files of the partitions are read, on this host; None: they are fetched."""
        self._local_bytes = 0
        self.for_columns = False
        """Whether whole batches are taken out, for tables."""
        self._first_asked = 0

    @property
    def isolation(self) -> int:
        """1 where only committed records are read."""
        return self._options.isolation

    def assign(self, places: Sequence[TopicPartition]) -> None:
        """Read these and no others; those that stay keep their position."""
        old = self.readings
        for place, reading in old.items():
            if place not in places:
                reading.forget()
        self.readings = {place: old.get(place) or Reading(place) for place in places}
        if self.local is not None:
            self.local.keep_only({(place.topic, place.partition) for place in places})
        self._metadata.want(*{place.topic for place in places})
        self._core.touch()

    # ── handing out ──────────────────────────────────────────────────────────────────────────────────────

    def in_turn(self) -> list[Reading]:
        """The partitions that have records to hand out, each time another one first.

        Raises:
            ClientError: a partition cannot be read on.
        """
        while self._errors:
            error, about, generation = self._errors.popleft()
            # A seek or another assignment since has made the error about a partition untrue.
            if about is None or (about.generation == generation and self.readings.get(about.place) is about):
                raise error
        self.on_take()
        now_s = self._core.scheduler.now_s
        readings = [
            each
            for each in self.readings.values()
            if not each.paused and each.has_records and not each.held and each.not_before_s <= now_s
        ]
        if not readings:
            return readings
        self._turn = (self._turn + 1) % len(readings)
        return readings[self._turn :] + readings[: self._turn]

    def take(self, records_max: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to `records_max` records that were fetched; partitions take turns.

        Raises:
            ClientError: a partition cannot be read on.
        """
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        readings = self.in_turn()
        if not readings:
            return taken
        left = records_max
        for reading in readings:
            if not (most := min(self.most.get(reading.place, left), left)):
                continue
            try:
                found = take_from(reading, most, self._options)
            except Exception as error:
                if isinstance(error, ClientError):
                    error.partition = reading.place
                if taken:
                    return taken  # the error comes with the next call: the position still stands before it
                raise
            if found:
                taken[reading.place] = found
                left -= len(found)
                if left <= 0:
                    break
        self._core.touch()
        return taken

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────────────

    def pump(self) -> float | None:  # noqa: PLR0912 - one look at each partition
        """Send the fetches that can be sent; returns when to look again."""
        now_s = self._scheduler.now_s
        again_s: float | None = None
        wishes: dict[int, list[Reading]] = {}
        full: set[int] = set()
        unresolved: list[Reading] = []
        self._local_bytes = 0
        for reading in self.readings.values():
            if reading.retry_at_s > now_s:
                again_s = reading.retry_at_s if again_s is None else min(again_s, reading.retry_at_s)
                continue
            if reading.fetch_offset is None:
                if not reading.resolving:
                    unresolved.append(reading)
                continue
            if reading.paused or reading.in_flight:
                if self.local is not None:
                    self.local.rest(*reading.place)
                continue
            if self.local is not None and not reading.asks_broker:
                if self._local_bytes >= LOCAL_BYTES_MAX:
                    look_s = now_s + LOCAL_PAUSE_S
                else:
                    look_s = self._read_files(self.local, reading)
                again_s = look_s if again_s is None else min(again_s, look_s)
                continue
            leader = self._metadata.leader(*reading.place)
            if leader is None:
                self._metadata.request_update()
                continue
            if len(reading.chunks) >= CHUNKS_MAX:
                full.add(leader.node_id)
            elif leader.node_id not in self._busy:
                wishes.setdefault(leader.node_id, []).append(reading)
        if unresolved:
            for reading in unresolved:
                reading.resolving = True
            self._core.background(self._resolve(unresolved))
        for node_id, readings in wishes.items():
            connection = self._network.connection(node_id)
            if connection.state != Connection.READY:
                connection.open()
            elif connection.throttled_until_s > now_s:
                until_s = connection.throttled_until_s
                again_s = until_s if again_s is None else min(again_s, until_s)
            else:
                self._fetch(connection, node_id, readings, is_short=node_id in full)
        return again_s

    def _fetch(
        self, connection: Connection, node_id: int, readings: list[Reading], *, is_short: bool
    ) -> None:
        options = self._options
        # Each time another one comes first: an answer may be full before it has something of all.
        self._first_asked += 1
        first = self._first_asked % len(readings)
        readings = readings[first:] + readings[:first]
        topics = {each.place.topic: index for index, each in reversed(list(enumerate(readings)))}
        readings.sort(key=lambda each: topics[each.place.topic])
        size_bytes = partition_bytes(options, len(self.readings), for_columns=self.for_columns)
        wished: list[FetchWish] = []
        asked: list[tuple[Reading, int, int]] = []
        version_max = min(ApiKey.FETCH.max_version, 17)
        for reading in readings:
            topic = self._metadata.topics[reading.place.topic]
            if topic.key.topic_id is None:
                version_max = min(version_max, FETCH_BY_ID - 1)
            assert reading.fetch_offset is not None
            epoch = topic.leaders[reading.place.partition].epoch
            wished.append(
                FetchWish(
                    topic.key,
                    reading.place.partition,
                    epoch,
                    reading.fetch_offset,
                    size_bytes,
                    # Another leader's log may differ before the offset, once (KIP-320).
                    reading.fetch_epoch if reading.leader_epoch != epoch else -1,
                )
            )
            reading.in_flight = True
            asked.append((reading, reading.generation, epoch))
        wait_ms = min(options.fetch_max_wait_ms, SHORT_WAIT_MS) if is_short else options.fetch_max_wait_ms

        def make(version: int, correlation_id: int) -> Sequence[bytes]:
            return (
                fetch_request(
                    version,
                    correlation_id,
                    options.client_id.encode(),
                    max_wait_ms=wait_ms,
                    min_bytes=options.fetch_min_bytes,
                    max_bytes=answer_bytes(options, for_columns=self.for_columns),
                    isolation=options.isolation,
                    rack=options.client_rack,
                    wishes=wished,
                ),
            )

        def read(version: int, frame: memoryview) -> Any:
            return parse_fetch_answer(version, body_cursor(ApiKey.FETCH, version, frame))

        self._busy.add(node_id)
        outcome = connection.call(
            ApiKey.FETCH,
            make,
            read,
            version_max=version_max,
            timeout_s=(options.request_timeout_ms + wait_ms) / 1000,
        )
        outcome.when_done(lambda done: self._answered(connection, node_id, asked, done))

    def _answered(
        self,
        connection: Connection,
        node_id: int,
        asked: list[tuple[Reading, int, int]],
        outcome: Outcome[Any],
    ) -> None:
        self._busy.discard(node_id)
        waiting = {
            reading.place: (reading, epoch)
            for reading, generation, epoch in asked
            if reading.generation == generation and self.readings.get(reading.place) is reading
        }
        for reading, _ in waiting.values():
            reading.in_flight = False
        self._core.touch()
        error = outcome.error
        if error is not None:
            if isinstance(error, ClientError) and not error.retriable:
                self.tell(error)
            self._metadata.request_update()
            for reading, _ in waiting.values():
                self._back_off(reading)
            return
        code, throttle_ms, answers, endpoints = outcome.result()
        if throttle_ms > 0:
            connection.throttled_until_s = self._scheduler.now_s + throttle_ms / 1000
        if code:
            for reading, _ in waiting.values():
                self._back_off(reading)
            return
        for answer in answers:
            name = answer.topic if isinstance(answer.topic, str) else self._name(answer.topic)
            found, epoch = waiting.get(TopicPartition(name, answer.partition), (None, -1))
            if found is not None:
                if answer.error_code in _MOVED:
                    self._metadata.hint(name, answer.partition, answer.leader, endpoints)
                self._told(found, epoch, answer)

    def _told(self, reading: Reading, leader_epoch: int, answer: FetchAnswer) -> None:
        """The broker that leads in this epoch has answered."""
        if answer.error_code:
            self._refused(reading, answer)
        elif answer.diverging is not None:
            self._diverged(reading, *answer.diverging)
        else:
            reading.leader_epoch = leader_epoch
            reading.asks_broker = False
            self._arrived(reading, answer)

    def _read_files(self, local: LocalFiles, reading: Reading) -> float:
        """Read what the files have for a partition; returns when to look again if nothing is heard of it."""
        now_s = self._scheduler.now_s
        place = reading.place
        if reading.look_s is not None and place not in local.news and now_s < reading.look_s:
            return reading.look_s
        local.news.discard(place)
        reading.look_s = None
        topic = self._metadata.topics.get(place.topic)
        if topic is None or topic.error_code:
            self._metadata.request_update()
            reading.look_s = now_s + LOCAL_RETRY_S
            return reading.look_s
        if len(reading.chunks) >= CHUNKS_MAX:
            local.rest(*place)
            return now_s + LOCAL_FULL_S
        options = self._options
        while len(reading.chunks) < CHUNKS_MAX and reading.fetch_offset is not None:
            try:
                found = local.partition(*place).read(
                    reading.fetch_offset,
                    topic_id=topic.key.topic_id,
                    bytes_max=partition_bytes(options, len(self.readings), for_columns=self.for_columns),
                    committed=bool(options.isolation),
                    leader_epoch=reading.leader_epoch if reading.fetch_epoch >= 0 else -1,
                )
            except CorruptRecordsError:
                self._ask_broker(reading)
                break
            except ClientError as error:
                self.tell(error, reading)
                self._back_off(reading)
                return reading.retry_at_s
            answer = FetchAnswer(
                place.topic,
                place.partition,
                found.error_code,
                found.high_watermark,
                found.last_stable_offset,
                found.log_start_offset,
                found.aborted,
                found.records,
                None,
            )
            if found.error_code in _ASK_BROKER:
                # The files may say less than the leader knows, and they do not say where logs part.
                self._metadata.request_update_since(place, found.leader_epoch)
                self._ask_broker(reading)
                break
            if found.error_code:
                if found.error_code in _MOVED:
                    self._metadata.request_update()
                self._refused(reading, answer)
                break
            if not found.records:
                if found.high_watermark >= 0:
                    reading.failures = 0
                    reading.high_watermark = found.high_watermark
                    reading.last_stable_offset = found.last_stable_offset
                    reading.log_start_offset = found.log_start_offset
                reading.look_s = now_s + found.quiet_s
                return reading.look_s
            self._local_bytes += len(found.records)
            whole = sound_bytes(found.records) if options.check_crcs else len(found.records)
            if not whole:
                self._ask_broker(reading)
                break
            reading.leader_epoch = found.leader_epoch
            self._arrived(reading, answer._replace(records=found.records[:whole]), is_checked=True)
        return now_s + LOCAL_RETRY_S

    def _ask_broker(self, reading: Reading) -> None:
        """Have the broker say what is there: this copy's file is damaged, old, or of another leader's log."""
        reading.asks_broker = True
        self._core.touch()

    def heard(self, _events: int) -> None:
        """Files that are read were written."""
        if self.local is not None:
            self.local.hear()
            self._core.touch()

    def _name(self, topic_id: UUID) -> str:
        return self._metadata.names.get(topic_id, "")

    def _arrived(self, reading: Reading, answer: FetchAnswer, *, is_checked: bool = False) -> None:
        reading.failures = 0
        reading.high_watermark = answer.high_watermark
        reading.last_stable_offset = answer.last_stable_offset
        reading.log_start_offset = answer.log_start_offset
        records, at = answer.records, 0
        next_offset, epoch = -1, -1
        size = len(records)
        while size - at >= b.HEADER_BYTES:
            base, length = b.OFFSET_AND_LENGTH.unpack_from(records, at)
            stop = at + length + b.LOG_OVERHEAD
            if length < b.HEADER_BYTES - b.LOG_OVERHEAD or records[at + b.MAGIC] != b.MAGIC_V2:
                place = reading.place
                self.tell(
                    CorruptRecordsError(f"{place.topic}-{place.partition}: no record batch of format v2"),
                    reading,
                )
                self._back_off(reading)
                return
            if stop > size:
                break
            header = b.HEADER.unpack_from(records, at)
            next_offset = base + header[b.H_LAST_OFFSET_DELTA] + 1
            epoch = header[b.H_PARTITION_LEADER_EPOCH]
            at = stop
        if at:
            reading.chunks.append(Chunk(records, at, answer.aborted or (), is_checked=is_checked))
            reading.fetch_offset, reading.fetch_epoch = next_offset, epoch
            self.on_news()
        elif size:
            place = reading.place
            self.tell(
                CorruptRecordsError(f"{place.topic}-{place.partition}: not one whole batch in {size} bytes"),
                reading,
            )
            self._back_off(reading)

    def _refused(self, reading: Reading, answer: FetchAnswer) -> None:
        code, place = answer.error_code, reading.place
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if reading.position != reading.fetch_offset:
                self._back_off(reading)  # what was fetched is handed out first
            elif self._options.auto_offset_reset == "none":
                self.tell(
                    error_of(code, f"offset {reading.fetch_offset} of {place.topic}-{place.partition}"),
                    reading,
                )
                self._back_off(reading)
            else:
                reading.seek_to(self._options.auto_offset_reset)
            return
        error = error_of(code, f"{place.topic}-{place.partition}")
        if not error.retriable:
            self.tell(error, reading)
        self._back_off(reading)

    def _diverged(self, reading: Reading, epoch: int, end_offset: int) -> None:
        """Go on where the leader's log parts from what was read (KIP-320), as Kafka's consumer does.

        `epoch` is the last one that both have, and ends at `end_offset` in the leader's log; -1: they have none.
        """
        assert reading.fetch_offset is not None
        place, position = reading.place, reading.position
        if end_offset >= reading.fetch_offset:
            reading.fetch_epoch = epoch  # Kafka's consumer takes that for the same log
        elif end_offset >= 0 and position is not None and position <= end_offset:
            reading.seek(position, reading.position_epoch)  # nothing of it was handed out
        elif self._options.auto_offset_reset == "none":
            since = f"differs from offset {end_offset} on" if end_offset >= 0 else "shares no offset with it"
            self.tell(
                error_of(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{place.topic}-{place.partition}: an election has taken back records that were read; "
                    f"the log {since}",
                ),
                reading,
            )
            self._back_off(reading)
        elif end_offset >= 0:
            reading.seek(end_offset, epoch)
        else:
            reading.seek_to(self._options.auto_offset_reset)

    def _back_off(self, reading: Reading) -> None:
        reading.retry_at_s = self._scheduler.now_s + self._network.backoff_s(reading.failures)
        reading.failures += 1

    def tell(self, error: ClientError, about: Reading | None = None) -> None:
        """Have poll raise this. One that nobody has seen yet is not put there again and again."""
        generation = 0 if about is None else about.generation
        error.partition = None if about is None else about.place
        if not any(str(each) == str(error) and of == generation for each, _, of in self._errors):
            self._errors.append((error, about, generation))
        self.on_news()

    # ── where to begin ───────────────────────────────────────────────────────────────────────────────────

    async def _resolve(self, readings: list[Reading]) -> None:  # noqa: PLR0912 - one conversation
        """Find positions: what is committed first, then by auto.offset.reset."""
        generations = [(reading, reading.generation) for reading in readings]
        try:
            asked = [each for each in readings if each.wants == "committed"]
            if asked and self._committed is not None:
                found: dict[TopicPartition, OffsetAndMetadata | None] = await self._committed(
                    [each.place for each in asked]
                )
                for reading, generation in generations:
                    offset = found.get(reading.place)
                    if (
                        offset is not None
                        and reading.generation == generation
                        and reading.wants == "committed"
                    ):
                        reading.seek(offset.offset, offset.leader_epoch)
            left = [
                (reading, generation)
                for reading, generation in generations
                if reading.generation == generation and reading.fetch_offset is None
            ]
            reset = self._options.auto_offset_reset
            wanted: dict[TopicPartition, int] = {}
            for reading, _ in left:
                wants = reading.wants
                if wants == "committed":
                    wants = "earliest" if reading.place.topic in self.from_start else reset
                if wants == "none":
                    place = reading.place
                    self.tell(
                        NoOffsetError(f"no offset of {place.topic}-{place.partition} is committed"), reading
                    )
                    self._back_off(reading)
                else:
                    wanted[reading.place] = _TIMES[wants]
            if wanted:
                offsets = await self.list_offsets(wanted, self._options.default_api_timeout_ms / 1000)
                for reading, generation in left:
                    at = offsets.get(reading.place)
                    if at is not None and reading.generation == generation:
                        reading.seek(at.offset, at.leader_epoch)
        except Exception as error:  # whatever it is, it must not be tried again without a pause
            if not isinstance(error, ClientError):
                logger.exception("internal error of the client: no position was found")
            elif not error.retriable:
                self.tell(error)
            for reading, generation in generations:
                if reading.generation == generation:
                    self._back_off(reading)
        finally:
            for reading, generation in generations:
                if reading.generation == generation:
                    reading.resolving = False
            self._core.touch()

    async def list_offsets(
        self, wanted: dict[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """As `OffsetLookup.find`."""
        return await self._lookup.find(wanted, timeout_s)
