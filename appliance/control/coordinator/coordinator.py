"""Requests of groups: from their bytes to what the group, its offsets and their log make of them, and to the answer.

    request ─→ gate (is the group's partition led by that slot, and loaded?) ─→ offsets, or group/ ─→ effects
                                                                                Answer: out
                                                                                Append: the log, then further effects

Decides nothing about groups: that is `group/`, which is pure. Nothing is answered before what it says is committed, and
nothing is applied before either, so that a death between any two steps loses nothing that anybody was told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from appliance.channels.partition_table import PartitionTable
from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS, Clock
from appliance.config import Settings
from appliance.control.coordinator.group.effects import (
    Answer,
    AnswerInPieces,
    Append,
    Client,
    Effects,
    GoOn,
    Record,
)
from appliance.control.coordinator.group.groups import Groups
from appliance.control.coordinator.internal_logs import InternalLogs
from appliance.control.coordinator.offsets.expiry import expired
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.offsets.offset_commit import CommitPlanner, failed_commit
from appliance.control.coordinator.offsets.offset_delete import plan_delete
from appliance.control.coordinator.offsets.offset_fetch import fetch_offsets
from appliance.control.coordinator.offsets.offset_records import parse_value
from appliance.control.coordinator.offsets.packed_offsets import all_end_with
from appliance.control.coordinator.request_lines import RequestLines
from appliance.control.coordinator.request_queue import Received, Reply
from appliance.control.coordinator.shard import ACTIVE, TOLD, Pair, Shard, State
from appliance.control.coordinator.slices import AnswerJob, Job, Slices, StepJob
from appliance.control.coordinator.topics import ImageTopics
from appliance.errors import CorruptFile, MalformedFrame
from appliance.ipc.agent import Timers
from appliance.journal import RateLimited
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest
from appliance.protocol.coordinator_errors import coordinator_error_response, told_to_reader
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.messages import decode_request, encode_response
from appliance.protocol.offset_commit import (
    TopicErrors,
    encode_offset_commit_response,
    every_partition,
    parse_offset_commit,
)
from appliance.protocol.primitives import INT32, NO_UUID
from appliance.protocol.records.compression import Codec

CHEAP_AT_ONCE: Final = 128
"""Cheap requests in one turn: what they write is one batch a log."""
SHORT_FETCH_BYTES_MAX: Final = 1024
UNDER_WAY_BYTES_MAX: Final = 64 << 20
"""Requests that were taken and are not answered; with more, new ones are told to come again."""
POOL_SHARES: Final = 4
"""So many batches of the largest size have room in the pool at once."""
RECORDS_A_WRITE: Final = 2000
EXPIRY_OFFSETS: Final = 5000
IDLE_GROUPS: Final = 200
MAKE_ROOM_PAUSE_MS: Final = 10_000
"""After a search for groups that nobody needs, which costs a look at all of them."""
EXPIRY_PAUSE_MS: Final = 5
"""Heartbeats are served between these many offsets that are looked at."""
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NOT_COORDINATOR: Final = int(ErrorCode.NOT_COORDINATOR)
_LOADING: Final = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_OFFSET_COMMIT: Final = int(ApiKey.OFFSET_COMMIT)
_LIST_GROUPS: Final = int(ApiKey.LIST_GROUPS)
_SYNC_GROUP: Final = int(ApiKey.SYNC_GROUP)
SYNC_FACTOR: Final = 8
"""How many times longer a SyncGroup may be than other requests: its leader sends the assignments of all members."""
_AT_ID: Final = 4
"""Where the correlation id stands in a response's frame."""

_APPEND_ERRORS: Final = {
    int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): _NOT_AVAILABLE,
    int(ErrorCode.NOT_ENOUGH_REPLICAS): _NOT_AVAILABLE,
    int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND): _NOT_AVAILABLE,
    int(ErrorCode.REQUEST_TIMED_OUT): _NOT_AVAILABLE,
    int(ErrorCode.NOT_LEADER_OR_FOLLOWER): _NOT_COORDINATOR,
    int(ErrorCode.KAFKA_STORAGE_ERROR): _NOT_COORDINATOR,
    int(ErrorCode.MESSAGE_TOO_LARGE): int(ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    int(ErrorCode.RECORD_LIST_TOO_LARGE): int(ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}
"""What an append of offsets met → what its client hears. Source: `GroupCoordinatorService.java`."""

_log = logging.getLogger(__name__)


class Coordinator:
    """All shards, all groups. Single-threaded; `turn` once in every turn of the duty cycle."""

    def __init__(
        self,
        settings: Settings,
        topics: ImageTopics,
        lines: RequestLines,
        logs: InternalLogs,
        table: PartitionTable,
        *,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._lines = lines
        self._logs = logs
        self._table = table
        self._timers = timers
        self._clock = clock
        self._planner = CommitPlanner(topics, metadata_max=settings.offsets.metadata_max_bytes)
        self._shards: list[Shard] = []
        self._dirty: set[Shard] = set()
        self._ids: Mapping[str, UUID] = {}
        self._expires_later = False
        self._makes_room = False
        self._room_not_before_ns = 0
        self._complain = RateLimited(_log.warning, clock)
        self._complain_of_limits = RateLimited(_log.warning, clock, interval_ms=60_000)
        self.commits = 0
        self.appends = 0
        self.groups = Groups(
            settings.group,
            clock,
            partition_of=self._partition_of,
            topics=topics,
            offsets=self,
            gate=self.gate,
        )
        self._servants: Mapping[int, Callable[[Any, Reply], None]] = {
            int(ApiKey.OFFSET_FETCH): self._fetch,
            int(ApiKey.OFFSET_DELETE): self._delete,
        }
        self._request_bytes_max = settings.group.request_max_bytes
        self._slices = Slices(clock.monotonic_ns, failed=self._job_failed)
        lines.on_closed = self._slices.closed

    # Requests

    def serve(self) -> None:
        """Serve what waits: some cheap requests, then long work for a slice of time. What goes wrong in one request
        is its own."""
        queue = self._lines.queue
        if len(queue):
            now_ms = self._clock.now_ms()
            for _ in range(CHEAP_AT_ONCE):
                received = queue.next_cheap()
                if received is None:
                    break
                self._serve_one(received, now_ms)
        if len(self._slices) or queue.has_costly:
            self._slices.run(self._begin_costly)

    @property
    def has_work(self) -> bool:
        """Whether there is something to serve at once: do not sleep."""
        lines, queue = self._lines, self._lines.queue
        return queue.has_cheap or bool(len(self._slices)) or (queue.has_costly and lines.has_room)

    def _begin_costly(self) -> bool:
        if not self._lines.has_room:
            return False
        received = self._lines.queue.next_costly()
        if received is None:
            return False
        self._serve_one(received, self._clock.now_ms())
        return True

    def _serve_one(self, received: Received, now_ms: int) -> None:
        reply = received.reply
        header = reply.header
        self._lines.take(reply)
        try:
            if header.api_key == _OFFSET_COMMIT:
                self._commit(received, now_ms)
                return
            bytes_max = self._request_bytes_max * (SYNC_FACTOR if header.api_key == _SYNC_GROUP else 1)
            if reply.length_bytes > bytes_max:
                self._lines.refuse(
                    reply,
                    f"a request of {reply.length_bytes} bytes: more than the {bytes_max} that group.request.max.bytes ="
                    f" {self._request_bytes_max} allows",
                )
                return
            request = decode_request(
                header.api_key, header.version, received.view, header.body_position, received.end
            )
            if header.api_key == _LIST_GROUPS:
                self._list(request, received)
                return
            if self._lines.under_way_bytes > UNDER_WAY_BYTES_MAX:
                self.respond(
                    reply,
                    coordinator_error_response(header.api_key, header.version, request, _NOT_AVAILABLE),
                )
                return
            self._servants.get(header.api_key, self._to_groups)(request, reply)
        except MalformedFrame as fault:
            self._lines.refuse(reply, str(fault))
        except Exception as error:
            self._contain(reply, error)

    def respond(self, reply: Reply, response: Any) -> None:
        """Answers a request."""
        header = reply.header
        try:
            frame = encode_response(header.api_key, header.version, response, header.correlation_id)
        except Exception as error:
            self._contain(reply, error)
            return
        self._lines.answer(reply, frame)

    def _answer_in_pieces(
        self, replies: list[Reply], elements: Iterator[Any], make: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        """Answers all of `replies`, which ask the same, in slices of time."""
        header = replies[0].header

        def encode(some: tuple[Any, ...]) -> bytes:
            return encode_response(header.api_key, header.version, make(some), header.correlation_id)

        job = AnswerJob(
            replies,
            elements,
            encode=encode,
            send=self._send,
            drop=self._lines.drop,
            monotonic_ns=self._clock.monotonic_ns,
        )
        self._slices.begin(job)

    def _send(self, frame: bytes, replies: list[Reply]) -> None:
        """One answer to all who asked the same: only the correlation ids are unlike, behind the size."""
        lines = self._lines
        if len(replies) == 1 and replies[0].header.correlation_id == INT32.unpack_from(frame, _AT_ID)[0]:
            lines.answer(replies[0], frame)
            return
        size, body = frame[:_AT_ID], frame[_AT_ID + INT32.size :]
        for reply in replies:
            lines.answer(reply, size + INT32.pack(reply.header.correlation_id), body)

    def _job_failed(self, job: Job, error: Exception) -> None:
        if isinstance(job, AnswerJob):
            for reply in job.waiting():
                self._contain(reply, error)
        else:
            _log.error("internal error in a group request (traceback follows)", exc_info=error)

    def _contain(self, reply: Reply, error: Exception) -> None:
        _log.error("internal error in a group request (traceback follows)", exc_info=error)
        if not reply.answered:
            self._lines.refuse(reply, "a defect of ours, told above")

    def _to_groups(self, request: Any, reply: Reply) -> None:
        limits = self.groups.limits
        refused = limits.refused_groups + limits.refused_members
        self._carry_out(self.groups.handle(request, client=_client(reply), reply=reply))
        if refused != limits.refused_groups + limits.refused_members:
            self._make_room()
        if not self._expires_later and len(self.groups):
            self._expire_later()

    def _make_room(self) -> None:
        """A group or a member was refused: says so, and looks now for groups that nobody needs."""
        limits, settings = self.groups.limits, self._settings.group
        self._complain_of_limits(
            f"{len(self.groups)} groups (group.max.count = {settings.max_count},"
            f" group.members.max = {settings.members_max}): {limits.refused_groups} groups and"
            f" {limits.refused_members} members were refused since the start. Delete groups, or raise the limit."
        )
        if not self._makes_room and self._clock.monotonic_ns() >= self._room_not_before_ns:
            self._makes_room = True
            self._room_not_before_ns = self._clock.monotonic_ns() + MAKE_ROOM_PAUSE_MS * NS_PER_MS
            self._remove_idle(iter(self.groups.idle()))

    def _list(self, request: Any, received: Received) -> None:
        """Answers ListGroups, and with the same list everybody else who waits for it: it begins after they asked."""
        reply = received.reply
        if any(shard.state is State.LOADING for shard in self._shards):
            header = reply.header
            self.respond(reply, coordinator_error_response(header.api_key, header.version, request, _LOADING))
            return
        others = [other.reply for other in self._lines.queue.like(received)]
        for other in others:
            self._lines.take(other)
        for effect in self.groups.handle(request, client=_client(reply), reply=reply):
            if isinstance(effect, AnswerInPieces):
                self._answer_in_pieces([reply, *others], effect.elements, effect.make)

    # Where groups belong

    def gate(self, group: str, slot: int) -> int:
        """Whether requests that name the group are served for a client of `slot`'s port: 0, or the error they get."""
        return self._gate_of(self._shard_of(group), slot) if self._shards else _NOT_AVAILABLE

    def _gate_of(self, shard: Shard, slot: int) -> int:
        place = shard.place
        if place is None:
            return _NOT_AVAILABLE
        if place.leader != slot:
            return _NOT_COORDINATOR
        if shard.state is ACTIVE:
            return 0
        if shard.state is State.ABSENT:
            shard.look()
            shard.look_later()
        return TOLD[shard.state]

    def _may_load(self, group: str) -> bool:
        """Whether the group's partition is there and can be expected to be replayed."""
        return bool(self._shards) and self._shard_of(group).state is not State.FAILED

    def _partition_of(self, group: str) -> int:
        return group_partition(group, len(self._shards))

    def _shard_of(self, group: str) -> Shard:
        return self._shards[group_partition(group, len(self._shards))]

    # Offsets

    def _commit(self, received: Received, now_ms: int) -> None:
        reply = received.reply
        header = reply.header
        request = parse_offset_commit(
            received.view, header.body_position, received.end, version=header.version
        )
        group = request.group_id
        if not self._shards or self._lines.under_way_bytes > UNDER_WAY_BYTES_MAX:
            self._told_commit(reply, every_partition(request, _NOT_AVAILABLE))
            return
        shard = self._shard_of(group)
        error = self._gate_of(shard, reply.slot) or self.groups.check_commit(
            group,
            member_id=request.member_id,
            instance_id=request.instance_id,
            generation=request.generation,
            api_version=header.version,
        )
        if not error and not shard.book.has(group):
            error = self._check_new(group)
        if error:
            self._told_commit(reply, every_partition(request, error))
            return
        plan = self._planner.plan(request, now_ms)
        if not plan.records:
            self._told_commit(reply, plan.errors)
            return
        self.commits += 1

        def committed(error: int) -> None:
            if error:
                self._told_commit(reply, failed_commit(plan.errors, _APPEND_ERRORS.get(error, error)))
                return
            book = shard.book
            is_new = not book.has(group)
            for topic, values in plan.puts:
                book.put_all(group, topic, values)
            if is_new:
                self.groups.offsets_seen(group)
                self._expire_later()
            self._told_commit(reply, plan.errors)

        shard.write(plan.records, committed)

    def _check_new(self, group: str) -> int:
        error = self.groups.check_new(group)
        if error:
            self._make_room()
        return error

    def _told_commit(self, reply: Reply, errors: Sequence[TopicErrors]) -> None:
        header = reply.header
        self._lines.answer(
            reply, encode_offset_commit_response(header.version, header.correlation_id, errors)
        )

    def _fetch(self, request: OffsetFetchRequest, reply: Reply) -> None:
        client = _client(reply)

        def check(wanted: OffsetFetchGroup) -> int:
            error = self.gate(wanted.group_id, reply.slot)
            if error:
                return told_to_reader(error) if self._may_load(wanted.group_id) else error
            return self.groups.check_fetch(
                wanted.group_id, member_id=wanted.member_id, epoch=wanted.member_epoch, client=client
            )

        fetched = fetch_offsets(
            request, reply.header.version, topics=self._topics, check=check, book_of=self._book_of
        )
        if reply.length_bytes <= SHORT_FETCH_BYTES_MAX and _is_short(request):
            self.respond(reply, fetched.make(tuple(fetched.elements)))
        else:
            self._answer_in_pieces([reply], fetched.elements, fetched.make)

    def _book_of(self, group: str) -> OffsetBook | None:
        return self._shard_of(group).book if self._shards else None

    def _delete(self, request: OffsetDeleteRequest, reply: Reply) -> None:
        group = request.group_id
        error = self.gate(group, reply.slot) or self.groups.check_offset_delete(group)
        if error:
            self.respond(reply, OffsetDeleteResponse(error_code=error))
            return
        shard = self._shard_of(group)
        records, response = plan_delete(
            request,
            topics=self._topics,
            book=shard.book,
            check_topic=lambda topic: self.groups.check_topic_delete(group, topic),
        )
        if not records:
            self.respond(reply, response)
            return

        def deleted(error: int) -> None:
            if not error:
                _apply(shard, records)
            told = OffsetDeleteResponse(error_code=_APPEND_ERRORS.get(error, error)) if error else response
            self.respond(reply, told)

        shard.write(_pairs(records), deleted)

    def has_offsets(self, group_id: str) -> bool:
        """See `group.effects.CommittedOffsets`."""
        return bool(self._shards) and self._shard_of(group_id).book.has(group_id)

    def tombstones(self, group_id: str) -> Sequence[Record]:
        """See `group.effects.CommittedOffsets`."""
        return self._shard_of(group_id).book.tombstones(group_id) if self._shards else ()

    # What groups want done

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Answer(reply, response):
                    self.respond(reply, response)
                case AnswerInPieces(reply, elements, make):
                    self._answer_in_pieces([reply], elements, make)
                case GoOn(action):
                    self._slices.later(StepJob(lambda action=action: self._carry_out(action())))  # type: ignore[misc]
                case Append(partition, records, then):
                    self._append(partition, records, then)

    def _append(self, partition: int, records: Sequence[Record], then: Callable[[int], Effects]) -> None:
        shard = self._shards[partition]

        def appended(error: int) -> None:
            if not error:
                _apply(shard, records)
            self._carry_out(then(error))

        shard.write(_pairs(records), appended)

    # Time

    def turn(self) -> bool:
        """The end of a turn: what is due, and what waits for its log. False: some must wait for room."""
        if self._topics.refresh():
            self._follow()
        deadline_ms = self.groups.next_deadline_ms()
        if deadline_ms is not None and deadline_ms * NS_PER_MS <= self._clock.monotonic_ns():
            self._carry_out(self.groups.expire())
        if not self._dirty:
            return True
        dirty, self._dirty = self._dirty, set()
        self.appends += len(dirty)
        refused = {shard for shard in dirty if not shard.flush()}
        self._dirty |= refused
        return not refused

    def next_due_ns(self) -> int | None:
        """When `turn` has something to do that nobody says."""
        deadline_ms = self.groups.next_deadline_ms()
        return None if deadline_ms is None else deadline_ms * NS_PER_MS

    # The image, the workers

    def follow_image(self) -> None:
        """Before requests are served: they are judged by the newest image."""
        if self._topics.refresh():
            self._follow()

    def _follow(self) -> None:
        places = self._topics.log_places()
        if len(places) != len(self._shards):
            # The topic is new, or another one: every group belongs elsewhere than before.
            for shard in self._shards:
                shard.unload()
            self._dirty.clear()
            self._shards = [self._new_shard(number) for number in range(len(places))]
        bytes_max = {
            leader: self._entry_bytes_max(leader) for leader in {place.leader for place in places if place}
        }
        for shard, place in zip(self._shards, places, strict=True):
            if place is not None:
                shard.entry_bytes_max = bytes_max[place.leader]
            shard.follow(place)
        before, self._ids = self._ids, self._topics.ids()
        self.groups.metadata_changed()
        gone = {name for name, topic_id in before.items() if self._ids.get(name) != topic_id}
        if gone:
            for shard in self._shards:
                self._forget_topics(shard, gone)

    def _entry_bytes_max(self, leader: int) -> int:
        pool_share = self._settings.broker.coordinator_pool_bytes // POOL_SHARES
        return min(self._topics.batch_bytes_max(self._settings, leader), pool_share)

    def _new_shard(self, number: int) -> Shard:
        broker = self._settings.broker
        return Shard(
            number,
            self._logs,
            self._table,
            listener=self,
            now_ms=self._clock.now_ms,
            codec=Codec(self._settings.offsets.topic_compression_codec),
            decompressed_bytes_max=broker.max_decompressed_message_bytes,
        )

    def _forget_topics(self, shard: Shard, gone: set[str]) -> None:
        """Deletes the offsets in topics that were deleted, those in a new one of the same name excepted."""

        def is_old(topic: str, _partition: int, value: bytes) -> bool:
            if topic not in gone:
                return False
            topic_id = parse_value(value).topic_id
            return topic_id == NO_UUID or topic_id != self._ids.get(topic)

        for group in shard.book.groups():
            if not gone.isdisjoint(shard.book.of(group)):
                self._write_tombstones(shard, shard.book.tombstones(group, is_old))

    def _forget_predecessors(self, shard: Shard) -> None:
        """Deletes what was committed to an earlier life of a topic that exists, after a load: nobody may have been here
        when that was deleted.

        Topics that the image does not name are left to the offsets' retention: they may only not be led yet.
        """
        book, ids = shard.book, self._ids

        def is_old(topic: str, _partition: int, value: bytes) -> bool:
            return topic in ids and parse_value(value).topic_id not in (NO_UUID, ids[topic])

        for group in book.groups():
            for topic, partitions in book.of(group).items():
                topic_id = ids.get(topic)
                # Nearly every value ends with the topic's id, which costs no parsing.
                if topic_id is None or all_end_with(partitions, topic_id.bytes):
                    continue
                self._write_tombstones(shard, book.tombstones(group, is_old))
                break

    def _write_tombstones(self, shard: Shard, records: list[Record]) -> None:
        for at in range(0, len(records), RECORDS_A_WRITE):
            some = records[at : at + RECORDS_A_WRITE]
            shard.write(_pairs(some), lambda error, some=some: None if error else _apply(shard, some))  # type: ignore[misc]

    def worker_up(self, worker: Role) -> None:
        """A worker serves: what it leads can be loaded."""
        for shard in self._shards:
            if shard.place is not None and shard.place.worker == worker:
                shard.look()

    def worker_down(self, worker: Role) -> None:
        """A worker died, its rings are gone: what it led must be read anew from its next life."""
        self._logs.worker_down(worker)
        for shard in self._shards:
            if shard.place is not None and shard.place.worker == worker:
                shard.unload()

    # What shards say

    def replay(self, number: int, key: bytes, value: bytes | None) -> None:
        self.groups.replay(number, key, value)

    def loaded(self, shard: Shard) -> None:
        book = shard.book
        self._carry_out(self.groups.loaded(shard.number))
        for group in book.groups():
            self.groups.offsets_seen(group)
        if book.groups():
            self._forget_predecessors(shard)
            self._expire_later()

    def unloaded(self, shard: Shard) -> None:
        self._carry_out(self.groups.unload(shard.number))

    def dirty(self, shard: Shard) -> None:
        self._dirty.add(shard)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._timers.add(self._clock.monotonic_ns() + delay_ms * NS_PER_MS, action)

    def warn(self, text: str) -> None:
        self._complain(text)

    # Expiry

    def _expire_later(self) -> None:
        if not self._expires_later:
            self._expires_later = True
            self.later(self._settings.offsets.retention_check_interval_ms, self._expire)

    def _expire(self) -> None:
        """Looks at every group with offsets, some at a time; again after the interval, as long as there are any."""
        self._expire_some(self._groups_with_offsets())

    def _groups_with_offsets(self) -> Iterator[tuple[Shard, str]]:
        for shard in list(self._shards):
            if shard.state is State.ACTIVE:
                for group in shard.book.groups():
                    yield shard, group

    def _expire_some(self, left: Iterator[tuple[Shard, str]]) -> None:
        looked_at = 0
        for shard, group in left:
            if shard.state is State.ACTIVE:
                looked_at += shard.book.count(group)
                self._expire_group(shard, group)
            if looked_at >= EXPIRY_OFFSETS:
                self.later(EXPIRY_PAUSE_MS, lambda: self._expire_some(left))
                return
        self._expires_later = False
        self._remove_idle(iter(self.groups.idle()))
        if len(self.groups):
            self._expire_later()

    def _remove_idle(self, left: Iterator[str]) -> None:
        """Removes groups without members and offsets, some at a time; Kafka, too, when it looks at the offsets."""
        for looked_at, group in enumerate(left, 1):
            shard = self._shard_of(group) if self._shards else None
            if shard is not None and shard.state is State.ACTIVE and not shard.book.has(group):
                self._carry_out(self.groups.remove_if_empty(group))
            if looked_at >= IDLE_GROUPS:
                self.later(EXPIRY_PAUSE_MS, lambda: self._remove_idle(left))
                return
        self._makes_room = False

    def _expire_group(self, shard: Shard, group: str) -> None:
        rule = self.groups.offset_expiry(group)
        if rule is None:
            return
        try:
            records = expired(
                shard.book,
                group,
                now_ms=self._clock.now_ms(),
                retention_ms=self._settings.offsets.retention_minutes * 60_000,
                empty_since_ms=rule.since_ms,
                subscribed=rule.subscribed,
            )
        except CorruptFile as fault:
            _log.error("cannot check the offsets of group %s for expiry: %s", group, fault)
            return
        self._write_tombstones(shard, records)
        if records and len(records) == shard.book.count(group):
            self._carry_out(self.groups.remove_if_empty(group))

    def statistics(self) -> dict[str, int]:
        """Partitions by state, groups with offsets, offsets."""
        told = [shard.statistics() for shard in self._shards]
        return {
            "loaded": sum(shard.state is State.ACTIVE for shard in self._shards),
            "loading": sum(shard.state is State.LOADING for shard in self._shards),
            "groups": sum(each["groups"] for each in told),
            "offsets": sum(each["offsets"] for each in told),
        }


def _is_short(request: OffsetFetchRequest) -> bool:
    """Whether it asks for named partitions of one group: then its answer is not worth slices of time."""
    if request.groups:
        return len(request.groups) == 1 and request.groups[0].topics is not None
    return request.topics is not None


def _client(reply: Reply) -> Client:
    return Client(reply.header.client_id or "", reply.host, slot=reply.slot, api_version=reply.header.version)


def _pairs(records: Sequence[Record]) -> list[Pair]:
    return [(record.key, record.value) for record in records]


def _apply(shard: Shard, records: Sequence[Record]) -> None:
    """Takes over what committed records say of offsets."""
    book = shard.book
    for record in records:
        if record.key[:2] == b"\0\1":
            book.apply(record.key, record.value)
