"""The sync consumer. One thread reads ahead and stays in the group; the application's thread takes what has arrived.

Records are decoded on the application's thread, in `poll`. A consumer belongs to one thread at a time; only `wakeup`
and `close` may be called from another one.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from appliance.protocol.apis.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance_client.consumer_core import ConsumerCore, RebalanceListener, Records
from appliance_client.core import Core, NotCopied, logger
from appliance_client.deaths import REASON
from appliance_client.errors import (
    ClientError,
    ClosedError,
    IllegalStateError,
    RecordDeserializationError,
    TimedOutError,
)
from appliance_client.handing_back import HandBack
from appliance_client.local_logs import local_logs
from appliance_client.options import ConsumerOptions, check_topics, options_of, records_max_of
from appliance_client.producer import Producer
from appliance_client.reading import Reading
from appliance_client.thread import IoThread
from appliance_client.values import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    offset_of,
    place_of,
    time_of,
)

T = TypeVar("T")
OnCommit = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], None]

_JOIN_S: Final = 5.0
_CLOSE_S: Final = 30.0


class Consumer(NotCopied):
    """Reads records. `config` has Kafka's names with dots, keyword arguments have underscores.

    with Consumer("greetings", bootstrap_servers="localhost:9092", group_id="readers") as consumer:
        for record in consumer:
            print(record.value)
    """

    def __init__(self, *topics: str, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        check_topics(topics)
        self._options = options_of(ConsumerOptions, config, options)
        may_create = self._options.allow_auto_create_topics and not self._options.retry_topics
        self._core = Core(self._options, now_s=time.monotonic(), auto_create=may_create)
        self._lock = self._core.lock = threading.RLock()
        self._consumer = ConsumerCore(self._options, self._core)
        self._news = threading.Condition(self._lock)
        self._consumer.on_news = self._news.notify_all
        self._closed = False
        retry_topics = self._consumer.retry_topics
        self._handing_back: HandBack | None = None
        if retry_topics is not None:
            self._handing_back = HandBack(self._options, retry_topics, Producer, self._keep)
        self._woken = False
        self._poller: int | None = None
        self._given: deque[ConsumerRecord] = deque()
        self._not_given: dict[TopicPartition, int] = {}
        self._columns: Any = None
        self._ends: dict[TopicPartition, int] = {}
        self._core.start()
        self._io = IoThread(self._core, "appliance-consumer")
        # In the child of a fork: the thread may have held it, and is not there.
        self._io.after_fork = self._lock._at_fork_reinit  # type: ignore[attr-defined]
        self._local = local_logs(self._options.data_directory)
        if self._local is not None:
            self._consumer.fetching.local = local = self._local
            self._io.submit(lambda: self._io.watch(local.descriptor, self._consumer.fetching.heard))
        if topics:
            try:
                self.subscribe(topics)
            except BaseException:
                self.close(0)
                raise

    # ── what to read ─────────────────────────────────────────────────────────────────────────────────────

    def subscribe(
        self,
        topics: Iterable[str] | str = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of the group; `pattern` is a regular expression of names.

        Raises:
            OptionError: there is no group.id, or the pattern is no regular expression.
        """
        self._change(lambda: self._consumer.subscribe(topics, pattern, listener))

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions, without the group's help."""
        listed = [place_of(each) for each in partitions]
        self._take_back()
        self._change(lambda: self._consumer.assign(listed))

    def unsubscribe(self) -> None:
        """Give everything up and leave the group."""
        self._take_back()
        self._io.call(self._consumer.unsubscribe(), None, "unsubscribe")

    def assignment(self) -> set[TopicPartition]:
        """What is read now."""
        with self._lock:
            return set(self._consumer.fetching.readings)

    def subscription(self) -> set[str]:
        """The topics subscribed to, patterns resolved."""
        with self._lock:
            return set(self._consumer.topics())

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these until `resume`."""
        self._change(lambda: self._set_paused(partitions, True))

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand these out again."""
        self._change(lambda: self._set_paused(partitions, False))

    def paused(self) -> set[TopicPartition]:
        """What is paused."""
        with self._lock:
            return {place for place, each in self._consumer.fetching.readings.items() if each.paused}

    def _set_paused(self, places: Iterable[TopicPartition], paused: bool) -> None:
        for place in places:
            self._reading(place).paused = paused

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Records by partition, as soon as there are any; an empty dict after `timeout_ms`.

        Raises:
            OffsetOutOfRangeError, NoOffsetError: and auto.offset.reset is none.
            CorruptRecordsError: fetched bytes fail their checksum. `seek` steps over them.
            RecordDeserializationError: a deserializer refuses a record. `seek` steps over it; with retry.topics,
                `error.record.dead()` keeps it as a dead letter.
            BrokerError: the group or a topic may not be read.
        """
        most = self._options.max_poll_records if max_records is None else records_max_of(max_records)
        self._take_back()
        records = self._poll(timeout_ms, lambda: self._take(most)) or {}
        interceptors = self._consumer.interceptors
        if self._handing_back is not None:
            records = self._for_retry(records, self._handing_back)
        return interceptors.consumed(records) if interceptors and records else records

    def poll_arrow(
        self, timeout_ms: float = 0, max_records: int | None = None, columns: Sequence[str] | None = None
    ) -> Any:
        """Records as a `pyarrow.Table`, as soon as there are any; an empty one after `timeout_ms` (docs/columns.md).

        `max_records` None gives all that was fetched; `max.poll.records` does not count here. `columns` chooses some.
        Positions, commits, groups, isolation and errors are as with `poll`. Needs the extra `arrow`.
        """
        from appliance_client.arrow_reading import ColumnsReader, schema_of

        schema = schema_of(columns)
        if max_records is not None:
            max_records = records_max_of(max_records)
        self._consumer.refuse_columns()
        self._take_back()
        if self._columns is None:
            self._columns = ColumnsReader(
                self._consumer.fetching, self._lock, check_crcs=self._options.check_crcs
            )
        reader = self._columns
        reader.ends = self._ends
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = max(0.0, (deadline_s - time.monotonic()) * 1000)
            taken = self._poll(left_ms, lambda: reader.begin(max_records))
            if not taken:
                return schema.empty_table()
            table = reader.table(taken, max_records, columns)
            if table.num_rows:
                return table

    def read_until(self, ends: Mapping[TopicPartition, int]) -> None:
        """Have `poll_arrow` leave out what lies at these offsets and behind."""
        self._ends = dict(ends)

    @property
    def default_timeout_s(self) -> float:
        """`default.api.timeout.ms`."""
        return self._options.default_api_timeout_ms / 1000

    def _take(self, most: int) -> Records:
        try:
            records = self._consumer.take(most)
        except RecordDeserializationError as error:
            if self._handing_back is not None:
                self._handing_back.give_to((error.record,))
            raise
        if self._consumer.by_key and not records:
            self._io.ring()  # what was read waits for its key: there is room to fetch more
        return records

    def _keep(self, record: ConsumerRecord) -> bool:
        """Keep a record that failed, if its group asks for the order; return whether it is kept (`ordered`)."""
        with self._lock:
            marks = self._consumer.keep(record)
        if marks is None:
            return False
        place = TopicPartition(record.topic, record.partition)
        if place not in self._consumer.by_key:  # there, the iterator has others of the partition
            self._not_given.pop(place, None)
        self._io.call(self._consumer.mark(marks), None, "mark")
        self._io.ring()
        return True

    def _for_retry(self, records: Records, handing_back: HandBack) -> Records:
        """Give the records their methods, and keep back those that kill consumers (`deaths`)."""
        handing_back.give_to(each for some in records.values() for each in some)
        with self._lock:
            plan = self._consumer.plan(records)
        if plan is None:
            return records
        dead = list(plan.dead)
        try:
            while dead:
                dead[0].dead(REASON)
                del dead[0]
            self._io.call(self._consumer.mark(plan.marks), None, "mark")
        except BaseException:  # the application gets nothing, so nothing may be committed
            with self._lock:
                self._consumer.put_back(plan, dead)
            raise
        finally:
            self._io.ring()
        return plan.given

    def _poll(self, timeout_ms: float, take: Callable[[], T]) -> T | None:
        """What `take` gives, as soon as that is something; None after `timeout_ms`."""
        self._check()
        deadline_s = time.monotonic() + timeout_ms / 1000
        consumer = self._consumer
        me = threading.get_ident()
        with self._lock:
            if self._poller not in (None, me):
                raise IllegalStateError("another thread polls this consumer")
            self._poller = me
            self._core.scheduler.advance(time.monotonic())
            consumer.poll_begins()
        try:
            while True:
                self._run_turns()
                with self._lock:
                    self._check()
                    if consumer.turns:
                        continue
                    records = take()
                    if records:
                        self._core.touch()
                        self._io.ring()
                        return records
                    if self._woken:
                        self._woken = False
                        return None
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return None
                    self._news.wait(min(left_s, 1.0))
        finally:
            with self._lock:
                self._core.scheduler.advance(time.monotonic())
                consumer.poll_ends()
                self._poller = None

    def _run_turns(self) -> None:
        """What the group wants of this thread: listeners, and to know that nothing is being processed."""
        while True:
            with self._lock:
                if not self._consumer.turns:
                    return
                turn = self._consumer.turns.popleft()
                self._core.scheduler.advance(time.monotonic())
                self._consumer.poll_ends()
            try:
                turn.call()
            finally:
                with self._lock:
                    self._consumer.turn_ends()
                    turn.outcome.resolve(None)
                self._io.ring()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits for ever."""
        while True:
            if self._given:
                record = self._given.popleft()
                self._not_given[TopicPartition(record.topic, record.partition)] = record.offset + 1
                return record
            self._not_given.clear()
            if self._closed:
                raise StopIteration
            try:
                polled = self.poll(1000)
            except ClosedError:
                raise StopIteration from None
            self._given.extend(record for records in polled.values() for record in records)
            for place, records in polled.items():
                if records:  # an interceptor may leave nothing
                    self._not_given[place] = records[0].offset

    def _take_back(self) -> None:
        """Have what the iterator has taken and not given be read again: the application goes on without it."""
        if self._given:
            self._given.clear()
            with self._lock:
                for place, offset in self._not_given.items():
                    self._consumer.give_back(place, offset)
                self._core.touch()
        self._not_given.clear()

    def wakeup(self) -> None:
        """From any thread: have a poll that waits return at once."""
        with self._lock:
            self._woken = True
            self._news.notify_all()

    # ── positions ────────────────────────────────────────────────────────────────────────────────────────

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on reading at `offset`."""
        at = offset_of(offset)
        self._change(lambda: self._seek(partition, at))

    def _seek(self, place: TopicPartition, at: OffsetAndMetadata) -> None:
        self._reading(place).seek(at.offset, at.leader_epoch)
        self._sought(place)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on where the log begins; of all assigned partitions where none is named."""
        self._change(lambda: self._seek_all(partitions, "earliest"))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on where the log ends."""
        self._change(lambda: self._seek_all(partitions, "latest"))

    def _seek_all(self, places: Iterable[TopicPartition], where: str) -> None:
        for place in tuple(places) or tuple(self._consumer.fetching.readings):
            self._reading(place).seek_to(where)
            self._sought(place)

    def _sought(self, place: TopicPartition) -> None:
        self._consumer.sought(place)
        if self._not_given.pop(place, None) is not None:
            self._given = deque(each for each in self._given if (each.topic, each.partition) != place)

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record; waits until it is known."""
        limit_ms = self._options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_s = time.monotonic() + limit_ms / 1000
        while True:
            with self._lock:
                self._check()
                at = self._reading(partition).position
                if self._given:  # the iterator has taken more than it has given
                    at = self._not_given.get(partition, at)
            if at is not None:
                return at
            if time.monotonic() > deadline_s:
                raise TimedOutError(f"no position of {partition} within {limit_ms} ms")
            time.sleep(0.005)  # asked once after an assignment, if at all

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition as the last fetch saw it."""
        with self._lock:
            end = self._reading(partition).high_watermark
            return None if end < 0 else end

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each."""
        return self._edges(partitions, EARLIEST_TIMESTAMP)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record of each; with read_committed after the last decided one."""
        return self._edges(partitions, LATEST_TIMESTAMP)

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms since 1970); None where there is none.

        With MAX_TIMESTAMP instead of a time: the record with the largest time.
        """
        found = self._list({place_of(place): time_of(at) for place, at in times_ms.items()})
        return {place: None if each.offset < 0 else each for place, each in found.items()}

    def _edges(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        found = self._list({place_of(each): which for each in partitions})
        return {place: each.offset for place, each in found.items()}

    def _list(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        limit_s = self._options.default_api_timeout_ms / 1000
        return self._io.call(self._consumer.fetching.list_offsets(wanted, limit_s), limit_s + 1, "offsets")

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit positions, or `offsets`, and wait for the answer.

        Raises:
            CommitFailedError: the group has given the partitions to another member.
        """
        limit_s = (self._options.default_api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        self._io.call(self._consumer.commit(self._offsets(offsets), limit_s), limit_s + 1, "commit")

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: OnCommit | None = None,
    ) -> None:
        """Commit without waiting. `callback(offsets, error)` runs on the consumer's own thread: it must not wait."""
        self._check()
        limit_s = self._options.default_api_timeout_ms / 1000
        given = self._offsets(offsets)
        with self._lock:
            what = self._consumer.positions(self._consumer.fetching.readings) if given is None else given
            who = None if self._consumer.coordinator is None else self._consumer.owner()

        def start() -> None:
            task = self._core.scheduler.spawn(self._consumer.commit(what, limit_s, who))
            task.when_done(lambda done: tell_committed(callback, what, done.error))

        self._io.submit(start)

    def committed(
        self, *partitions: TopicPartition, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for each; None for nothing."""
        limit_s = (self._options.default_api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        listed = [place_of(each) for each in partitions]
        return self._io.call(self._consumer.committed(listed, limit_s), limit_s + 1, "committed")

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group, for `Producer.send_offsets_to_transaction`."""
        with self._lock:
            return self._consumer.group_metadata()

    def _offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> dict[TopicPartition, OffsetAndMetadata] | None:
        if offsets is not None:
            return {place_of(place): offset_of(each) for place, each in offsets.items()}
        if not self._not_given:
            return None
        # The iterator has taken more than it has given: its partitions stand where it has come to.
        with self._lock:
            return self._consumer.positions(self._consumer.fetching.readings, self._not_given)

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────

    def partitions_for_topic(self, topic: str, timeout_ms: float | None = None) -> set[int]:
        """The indexes of a topic's partitions. `timeout_ms`: default.api.timeout.ms, or less.

        Raises:
            BrokerError: there is still no such topic after that time, or it cannot be used.
            TimedOutError: nobody has answered.
        """
        limit_s = self._options.default_api_timeout_ms / 1000
        if timeout_ms is not None:
            limit_s = min(limit_s, timeout_ms / 1000)
        found = self._io.call(
            self._core.metadata.topic(topic, time.monotonic() + limit_s), limit_s + 1, f"metadata of {topic}"
        )
        return set(range(found.partitions))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────

    def close(self, timeout_ms: float = _CLOSE_S * 1000) -> None:
        """Commit (with enable.auto.commit), leave the group and end the thread. Never hangs."""
        if self._closed or self._io.forked:
            return
        if self._not_given:
            # What the iterator has not given was not processed: it must not be committed.
            with self._lock:
                for place, offset in self._not_given.items():
                    self._consumer.give_back(place, offset)
        self._closed = True
        try:
            if timeout_ms > 0:
                self._io.call(self._consumer.close(), timeout_ms / 1000, "close")
        except ClientError as error:
            logger.warning("closing the consumer: %s", error)
        finally:
            self._io.stop(_JOIN_S)
            with self._lock:
                if self._local is not None:
                    self._local.close()
                self._news.notify_all()
            if self._handing_back is not None:
                self._handing_back.close()
            self._consumer.interceptors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        io = getattr(self, "_io", None)
        if io is not None and not self._closed and not io.forked:
            warnings.warn("a consumer was not closed", ResourceWarning, stacklevel=2)
            io.stop(0)

    # ── handing over ─────────────────────────────────────────────────────────────────────────────────────

    def _check(self) -> None:
        if self._closed or self._io.forked or self._io.ended.is_set():
            self._io.check()
            raise ClosedError("the consumer is closed")

    def _change(self, change: Callable[[], None]) -> None:
        """Change the state under the lock, and have the thread act on it."""
        self._check()
        with self._lock:
            change()
            self._core.touch()
        self._io.ring()

    def _reading(self, place: TopicPartition) -> Reading:
        found = self._consumer.fetching.readings.get(place)
        if found is None:
            raise IllegalStateError(f"{place} is not assigned")
        return found


def tell_committed(
    callback: OnCommit | None, offsets: dict[TopicPartition, OffsetAndMetadata], error: BaseException | None
) -> None:
    """Tell the application what has become of its `commit_async`."""
    if callback is None:
        if error is not None:
            logger.warning("commit: %s", error)
        return
    try:
        callback(offsets, error)
    except Exception:
        logger.exception("a commit callback raised")
