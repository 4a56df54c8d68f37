"""The partitions that a consumer reads: positions, fetches under way, and what was fetched and not handed out yet.

    fetch ─▶ chunk of batches ─▶ one batch decoded ─▶ records handed out by poll

A partition's next fetch is sent while its last chunk is being handed out: up to two chunks wait. `position` is the next
record to hand out; `fetch_offset` the next to ask for. A seek raises `generation`, so that an answer to an older fetch
is dropped. Records of aborted transactions and control batches are stepped over here (isolation read_committed): a
transaction is aborted from the offset that the broker lists until its abort marker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from uuid import UUID

from appliance.errors import ClientFault
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from appliance.protocol.records.control import ControlType, control_type
from appliance_client.connection import Connection, body_cursor
from appliance_client.core import Core
from appliance_client.errors import (
    ClientError,
    CorruptRecordsError,
    NoOffsetError,
    TimedOutError,
    TransportError,
    error_of,
)
from appliance_client.kernel import ConsumerRecord, decode_records
from appliance_client.options import ConsumerOptions
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


class Chunk:
    """Whole batches of one answer, and the transactions among them that were aborted."""

    __slots__ = ("aborted", "aborting", "at", "before", "end", "records")

    def __init__(self, records: memoryview, end: int, aborted: Sequence[tuple[int, int]]) -> None:
        self.records = records
        self.at = 0
        self.before = 0
        """Where the batch begins whose records are being handed out."""
        self.end = end
        self.aborted = deque(sorted(aborted, key=lambda each: each[1]))
        self.aborting: set[int] = set()


class Reading:
    """One assigned partition."""

    __slots__ = (
        "asks_broker",
        "chunks",
        "failures",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "held",
        "high_watermark",
        "in_flight",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "look_s",
        "next_after_ready",
        "paused",
        "place",
        "position",
        "position_epoch",
        "ready",
        "ready_at",
        "resolving",
        "retry_at_s",
        "wants",
    )

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.position: int | None = None
        self.position_epoch = -1
        self.fetch_offset: int | None = None
        self.fetch_epoch = -1
        """The leader epoch of the record before `fetch_offset`, -1 where it is not known."""
        self.leader_epoch = -1
        """Of the leader whose log has what was read before `fetch_offset`; -1: no leader was asked."""
        self.asks_broker = False
        """What its files say is to be confirmed by one fetch from the broker."""
        self.wants = "committed"
        """Where to begin, while there is no position: committed, earliest or latest."""
        self.resolving = False
        self.generation = 0
        self.paused = False
        self.held = False
        """It is being revoked: nothing more of it is handed out."""
        self.in_flight = False
        self.chunks: deque[Chunk] = deque()
        self.ready: list[ConsumerRecord] = []
        self.ready_at = 0
        self.next_after_ready = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.look_s: float | None = None
        """When to look at its files again, which had nothing more, if nothing is heard of them."""
        self.retry_at_s = 0.0
        self.failures = 0

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Go on at `offset`; what was fetched is dropped."""
        self.forget()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch

    def seek_to(self, wants: str) -> None:
        """Go on where the log begins or ends, or the group has come to; that must be asked for."""
        self.forget()
        self.position = self.fetch_offset = None
        self.fetch_epoch = -1
        self.wants = wants

    def forget(self) -> None:
        """Drop what was fetched, and what is on its way."""
        self.generation += 1
        self.chunks.clear()
        self.ready = []
        self.ready_at = 0
        self.in_flight = False
        self.resolving = False
        self.asks_broker = False
        self.leader_epoch = -1
        self.look_s = None
        self.retry_at_s = 0.0

    @property
    def has_records(self) -> bool:
        return self.ready_at < len(self.ready) or bool(self.chunks)


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
        self._busy: set[int] = set()
        self._turn = 0
        self.local: LocalFiles | None = None
        """Where the files of the partitions are read, on this host; None: they are fetched."""
        self._local_bytes = 0

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
        readings = [
            each for each in self.readings.values() if not each.paused and each.has_records and not each.held
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
            try:
                found = self._take_from(reading, left)
            except ClientError as error:
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

    def _take_from(self, reading: Reading, records_max: int) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        while len(found) < records_max:
            if reading.ready_at >= len(reading.ready):
                if found and not reading.chunks:
                    break
                if not self._decode_next(reading):
                    break
                continue
            stop = min(len(reading.ready), reading.ready_at + records_max - len(found))
            if reading.ready_at == 0 and stop == len(reading.ready) and not found:
                found = reading.ready
            else:
                found += reading.ready[reading.ready_at : stop]
            if stop == len(reading.ready):
                reading.ready = []
                reading.ready_at = 0
                reading.position = reading.next_after_ready
            else:
                reading.ready_at = stop
                reading.position = found[-1].offset + 1
            reading.position_epoch = found[-1].leader_epoch
        return found

    def _decode_next(self, reading: Reading) -> bool:
        """Decode the next batch that has records for us; False where no chunk is left."""
        while reading.chunks:
            chunk = reading.chunks[0]
            if chunk.at >= chunk.end:
                reading.chunks.popleft()
                continue
            header = b.BatchHeader(*b.HEADER.unpack_from(chunk.records, chunk.at))
            start, stop = chunk.at, chunk.at + header.size_bytes
            records: list[ConsumerRecord] = []
            if not self.is_hidden(chunk, header):
                records = self._decode(reading, chunk.records[start:stop], header)
            chunk.at = stop
            chunk.before = start
            if records:
                reading.ready = records
                reading.ready_at = 0
                reading.next_after_ready = header.next_offset
                return True
            if reading.position is None or header.next_offset > reading.position:
                reading.position = header.next_offset
        return False

    def is_hidden(self, chunk: Chunk, header: b.BatchHeader) -> bool:
        """Whether no record of the batch is for the application."""
        if self._options.isolation:
            while chunk.aborted and chunk.aborted[0][1] <= header.last_offset:
                chunk.aborting.add(chunk.aborted.popleft()[0])
        if header.is_control:
            if self._options.isolation and header.producer_id in chunk.aborting:
                start = chunk.at + b.HEADER_BYTES
                raw = bytes(chunk.records[start : chunk.at + header.size_bytes])
                try:
                    kinds = decode_records(raw, header.records_count, "", 0, 0, 0, -1, 0, 0)
                    if kinds and control_type(kinds[0].key) == ControlType.ABORT:
                        chunk.aborting.discard(header.producer_id)
                except ClientFault as error:
                    raise CorruptRecordsError(str(error)) from None
            return True
        return bool(
            self._options.isolation and header.is_transactional and header.producer_id in chunk.aborting
        )

    def _decode(self, reading: Reading, batch: memoryview, header: b.BatchHeader) -> list[ConsumerRecord]:
        place = reading.place
        try:
            if self._options.check_crcs and not b.crc_holds(batch):
                raise CorruptRecordsError(
                    f"{place.topic}-{place.partition}@{header.base_offset}: checksum fails"
                )
            payload: Any = batch[b.RECORDS :]
            if header.codec:
                payload = decompress(header.codec, payload, DECOMPRESSED_BYTES_MAX)
            records = decode_records(
                bytes(payload),
                header.records_count,
                place.topic,
                place.partition,
                header.base_offset,
                header.base_timestamp_ms,
                header.max_timestamp_ms if header.is_log_append_time else -1,
                reading.position or 0,
                header.partition_leader_epoch,
            )
        except ClientFault as error:
            raise CorruptRecordsError(
                f"{place.topic}-{place.partition}@{header.base_offset}: {error}"
            ) from None
        key_of, value_of = self._options.key_deserializer, self._options.value_deserializer
        if key_of is not None:
            for record in records:
                if record.key is not None:
                    record.key = key_of(record.key)
        if value_of is not None:
            for record in records:
                if record.value is not None:
                    record.value = value_of(record.value)
        return records

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
        readings.sort(key=lambda each: each.place.topic)
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
                    options.max_partition_fetch_bytes,
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
                    max_bytes=options.fetch_max_bytes,
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
                    bytes_max=options.max_partition_fetch_bytes,
                    committed=bool(options.isolation),
                    leader_epoch=reading.leader_epoch if reading.fetch_epoch >= 0 else -1,
                )
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
                reading.asks_broker = True
                self._metadata.request_update_since(place, found.leader_epoch)
                self._core.touch()
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
            reading.leader_epoch = found.leader_epoch
            self._arrived(reading, answer)
        return now_s + LOCAL_RETRY_S

    def heard(self, _events: int) -> None:
        """Files that are read were written."""
        if self.local is not None:
            self.local.hear()
            self._core.touch()

    def _name(self, topic_id: UUID) -> str:
        return self._metadata.names.get(topic_id, "")

    def _arrived(self, reading: Reading, answer: FetchAnswer) -> None:
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
            reading.chunks.append(Chunk(records, at, answer.aborted or ()))
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
            if self._options.auto_offset_reset == "none":
                self.tell(
                    error_of(code, f"offset {reading.fetch_offset} of {place.topic}-{place.partition}"),
                    reading,
                )
                self._back_off(reading)
            elif reading.position == reading.fetch_offset:
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
                wants = reset if reading.wants == "committed" else reading.wants
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
        except ClientError as error:
            if not error.retriable:
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
        self, wanted: dict[TopicPartition, int], timeout_s: float, *, committed: bool | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The offset at each time (ms since 1970, or one of ListOffsets' special values); -1 where there is none.

        Raises:
            TimedOutError, BrokerError: not all could be found.
        """
        deadline_s = self._scheduler.now_s + timeout_s
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        isolation = self._options.isolation if committed is None else int(committed)
        attempt = 0
        last: ClientError | None = None
        while len(found) < len(wanted):
            by_node: dict[int, list[TopicPartition]] = {}
            for place in wanted:
                if place in found:
                    continue
                topic = await self._metadata.topic(place.topic, deadline_s)
                if not 0 <= place.partition < topic.partitions:
                    raise error_of(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"{place.topic} has partitions 0 to {topic.partitions - 1}, not {place.partition}",
                    )
                leader = self._metadata.leader(*place)
                if leader is not None:
                    by_node.setdefault(leader.node_id, []).append(place)
            for node_id, places in by_node.items():
                try:
                    last = await self._list_offsets_of(node_id, places, wanted, isolation, found) or last
                except TransportError as error:
                    last = error
            if len(found) == len(wanted):
                break
            self._metadata.request_update()
            wait_s = self._network.backoff_s(attempt)
            attempt += 1
            if self._scheduler.now_s + wait_s > deadline_s:
                raise TimedOutError(f"offsets: {last or 'no leader'}")
            await self._scheduler.sleep(wait_s)
        return found

    async def _list_offsets_of(
        self,
        node_id: int,
        places: list[TopicPartition],
        wanted: dict[TopicPartition, int],
        isolation: int,
        found: dict[TopicPartition, OffsetAndTimestamp],
    ) -> ClientError | None:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for place in places:
            leader = self._metadata.leader(*place)
            topics.setdefault(place.topic, []).append(
                ListOffsetsPartition(place.partition, wanted[place], leader.epoch if leader else -1)
            )
        listed = tuple(ListOffsetsTopic(name, tuple(parts)) for name, parts in topics.items())
        request = ListOffsetsRequest(-1, listed, isolation, self._options.request_timeout_ms)
        answer = await self._network.call(node_id, ApiKey.LIST_OFFSETS, request)
        last: ClientError | None = None
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code:
                    last = error_of(part.error_code, f"{topic.name}-{part.partition_index}")
                    if not last.retriable:
                        raise last
                else:
                    found[TopicPartition(topic.name, part.partition_index)] = OffsetAndTimestamp(
                        part.offset, part.timestamp_ms, part.leader_epoch
                    )
        return last
