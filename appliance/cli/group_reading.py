"""Read topics as a member of a group, for `appliance consume --group`.

Every record that a member prints lies between two callbacks of librdkafka. Callbacks run only inside `poll` and
`consume`, and the reader prints and stores what these returned before it calls them again. Thus, when librdkafka takes
a partition away, the offsets of all printed records are stored, and librdkafka commits them before the next member gets
the partition.

| what happens | what the reader does |
|---|---|
| a partition is taken away | it drops records of it that are not printed; the next member prints them |
| a partition is lost (session over) | the same; records since the last commit are printed a second time |
| the end of a partition | it stores the end, which lies behind the last record where markers of transactions follow |
| the end of all its partitions | it waits until the group has read the rest, too |
| SIGINT, SIGTERM, `--count` | it commits, says so if that fails, and leaves the group |
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence, Set
from threading import Thread
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import click

from appliance.cli.client import admin_client, asked, consumer, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError, said_options
from appliance.cli.group_lag import committed_offsets, earliest, latest, offsets_at
from appliance.cli.positions import partitions_of
from appliance.cli.record_format import Formatter
from appliance.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
    from confluent_kafka.admin import AdminClient

Partition = tuple[str, int]

BATCH: Final = 1000
NAMES_MAX: Final = 5
POLL_S: Final = 0.5
HINT_S: Final = 10.0
LOOK_S: Final = 0.5
OTHERS_S: Final = 75.0
"""How long other members may make no progress. A dead one holds its partitions for its session: 45 s by default."""
COMMIT_S: Final = 15.0
CLOSE_S: Final = 10.0

END_OF_PARTITION: Final = -191
NOT_ASSIGNED: Final = -172
NO_OFFSET: Final = -168
POLLED_TOO_LATE: Final = -147
NO_BROKER: Final = -187
"""Codes of librdkafka. Source: `rdkafka.h`, rd_kafka_resp_err_t."""

REFUSED_MEMBER: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""With these errors a member cannot join its group, however often it tries."""


class Sink(Protocol):
    """Where records are printed."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class Stop:
    """Notes SIGINT and SIGTERM, so that a member ends between two turns. A second signal interrupts at once."""

    __slots__ = ("_before", "number")

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell's background job ignores SIGINT
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number

    def end(self) -> None:
        """End the command as the signal says: with 130 or 143. Return where none came."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number is not None:
            raise click.exceptions.Exit(128 + self.number)


class GroupReader:
    """A member of `group` that prints records. Close it.

    Args:
        options: settings of librdkafka over those of a member.
        warn: takes a sentence for standard error.

    Raises:
        BrokerError: nobody answers.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        *,
        options: Mapping[str, object],
        formatter: Formatter,
        sink: Sink,
        warn: Callable[[str], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._formatter = formatter
        self._sink = sink
        self._warn = warn
        self._begins_at_end = options.get("auto.offset.reset") == "latest"
        self._commits = said_options().get("enable.auto.commit", "true").lower() != "false"
        self._assigned: set[Partition] = set()
        self._caught_up: set[Partition] = set()
        self._uncommitted: dict[Partition, int] = {}
        self._commit_fault: str | None = None
        self._lost: set[Partition] = set()
        self._asked_for: dict[Partition, int] | None = None
        """What a commit in flight covers."""
        self._waits_since_s = time.monotonic()
        self._is_hinted = False
        self._has_no_broker = False
        self._client: Consumer = consumer(
            bootstrap,
            {
                "group.id": group,
                "enable.auto.commit": True,
                "on_commit": self._on_commit,
                "error_cb": self._on_error,
                **options,
            },
        )

    def close(self) -> None:
        """Leave the group. librdkafka waits for the coordinator; the command waits for `CLOSE_S` at most."""
        leaving = Thread(target=self._client.close, daemon=True)
        leaving.start()
        leaving.join(CLOSE_S)
        if leaving.is_alive():
            self._warn(
                f"group {self._group}: no answer from the coordinator; it keeps this member until its session is over"
            )

    def topics(self) -> Mapping[str, Any]:
        """Return the topics of the cluster by name."""
        found: Mapping[str, Any] = asked(lambda: self._client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
        return found

    def read(self, topics: Sequence[str], *, count: int | None, follows: bool, stop: Stop) -> None:
        """Print up to `count` records; without `follows` until the group has read all that exists now.

        Raises:
            BrokerError: a broker refuses; other members do not read what they hold; or printed records could not be
                committed.
        """
        backlog = None if follows else self._backlog(topics)
        self._client.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        left = count
        while left != 0 and stop.number is None:
            printed = self._turn(left)
            if printed and left is not None:
                left -= printed
            self._hint()
            if backlog is not None and not printed and self._caught_up >= self._assigned:
                self._begin_commit()  # other members wait until this one has committed
                if backlog.is_read(self._assigned):
                    break
        self._commit()

    def _backlog(self, topics: Sequence[str]) -> Backlog:
        places = [(topic, number) for topic in topics for number in partitions_of(self._client, topic)]
        return Backlog(admin_client(self._bootstrap), self._group, places, begins_at_end=self._begins_at_end)

    def _turn(self, left: int | None) -> int | None:
        """Print what is there, at most `left` records; return how many, or None where nothing came."""
        # One by poll, the rest at once: consume() alone holds the first back until the batch is full. The first is
        # printed and stored before consume() runs callbacks.
        first = asked(lambda: self._client.poll(POLL_S))
        if first is None:
            return None
        printed = self._take([first])
        wanted = BATCH if left is None else min(BATCH, left - printed)
        if wanted:
            printed += self._take(asked(lambda: self._client.consume(wanted, timeout=0)))
        return printed

    def _take(self, messages: Sequence[Message]) -> int:
        """Print and store; return how many records were printed."""
        printed = 0
        stored: dict[Partition, TopicPartition] = {}
        for message in messages:
            place: Partition = (message.topic() or "", _number(message.partition()))
            if (error := message.error()) is not None:
                if error.code() == END_OF_PARTITION:
                    if place in self._assigned:
                        self._caught_up.add(place)
                        stored[place] = _position(place, _number(message.offset()))
                else:
                    self._hear(error, message.topic(), place)
            elif place in self._assigned:
                self._caught_up.discard(place)
                self._sink.write(self._formatter(message))
                stored[place] = _position(place, _number(message.offset()) + 1, message.leader_epoch())
                printed += 1
        self._sink.flush()
        self._store(stored)
        return printed

    def _store(self, positions: Mapping[Partition, TopicPartition]) -> None:
        from confluent_kafka import KafkaException

        for place, position in positions.items():
            try:
                self._client.store_offsets(offsets=[position])
            except KafkaException as fault:
                error = fault.args[0]
                if error.code() != NOT_ASSIGNED:
                    raise BrokerError(refusal(error)) from fault
                # librdkafka has taken the partition away; the next member prints these records a second time
            else:
                self._uncommitted[place] = position.offset

    def _hear(self, error: KafkaError, topic: str | None, place: Partition) -> None:
        if error.code() == POLLED_TOO_LATE:
            self._warn(
                "the reader of this output was too slow, so the group continued without this member; joining again"
            )
        elif topic is not None:
            raise BrokerError(f"{topic}-{place[1]}: {refusal(error)}")
        elif error.fatal() or error.code() in REFUSED_MEMBER:
            raise BrokerError(f"group {self._group}: {refusal(error)}")
        # Anything else is about a connection or a coordinator that moves; librdkafka tries again by itself.

    def _hint(self) -> None:
        """Say once why nothing comes."""
        if self._assigned or self._is_hinted or time.monotonic() - self._waits_since_s < HINT_S:
            return
        self._is_hinted = True
        self._warn(
            f"waiting for partitions of the group {self._group}: other members hold all of them, or it rebalances"
        )

    def _on_assign(self, _client: object, partitions: Sequence[TopicPartition]) -> None:
        given = {(each.topic, each.partition) for each in partitions}
        self._assigned |= given
        self._caught_up -= given

    def _on_revoke(self, _client: object, partitions: Sequence[TopicPartition]) -> None:
        taken = {(each.topic, each.partition) for each in partitions}
        self._assigned -= taken
        self._caught_up -= taken
        for place in taken:
            self._uncommitted.pop(place, None)
        self._waits_since_s = time.monotonic()

    def _on_lost(self, client: object, partitions: Sequence[TopicPartition]) -> None:
        """The session is over: other members have these partitions, and nothing more can be committed."""
        lost = {(each.topic, each.partition) for each in partitions} & self._uncommitted.keys()
        self._lost |= lost
        if lost:
            self._warn(
                f"group {self._group}: the session of this member ended before it could commit; the group prints again"
                f" records of {', '.join(f'{topic}-{number}' for topic, number in sorted(lost)[:NAMES_MAX])}"
                f"{' and others' if len(lost) > NAMES_MAX else ''}"
            )
        self._on_revoke(client, partitions)

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition] | None) -> None:
        covered, self._asked_for = self._asked_for, None
        if error is not None and error.code() == NO_OFFSET:
            # librdkafka leaves out what it has committed before; nothing was left.
            self._settle(covered or {})
            return
        for each in partitions or ():
            fault = error or each.error
            if fault is not None:
                self._commit_fault = refusal(fault)
            else:
                self._settle({(each.topic, each.partition): each.offset})

    def _settle(self, committed: Mapping[Partition, int]) -> None:
        for place, offset in committed.items():
            if offset >= self._uncommitted.get(place, offset + 1):
                del self._uncommitted[place]

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == NO_BROKER and not self._has_no_broker:
            self._has_no_broker = True
            self._warn("no broker can be reached; trying again")

    def _commit(self) -> None:
        """Commit what is printed, and wait for the answer.

        Raises:
            BrokerError: the coordinator has not taken it in time, although the partitions are still assigned.
        """
        if not self._commits:
            return
        deadline_s = time.monotonic() + COMMIT_S
        self._lost.clear()
        while self._uncommitted or self._lost:
            if self._lost or time.monotonic() > deadline_s:
                reason = f": {self._commit_fault}" if self._commit_fault is not None else ""
                raise BrokerError(
                    f"group {self._group}: the offsets of printed records were not committed{reason};"
                    " the group will print these records again"
                )
            self._begin_commit()
            # What this returns is not stored, thus not lost: the next member begins with it.
            asked(lambda: self._client.poll(0.1))

    def _begin_commit(self) -> None:
        from confluent_kafka import KafkaException

        if self._asked_for is not None or not self._uncommitted or not self._commits:
            return
        self._asked_for = dict(self._uncommitted)
        try:
            self._client.commit(asynchronous=True)
        except KafkaException as fault:
            self._on_commit(fault.args[0], None)


class Backlog:
    """What a group has not read of the records that existed when the command began.

    A member cannot tell from its own partitions alone whether everything is read: others may come to it in the same
    rebalance, and the partitions of a member that has died come when its session is over.
    """

    def __init__(
        self, client: AdminClient, group: str, places: Sequence[Partition], *, begins_at_end: bool
    ) -> None:
        self._client = client
        self._group = group
        self._begins_at_end = begins_at_end
        self._starts = offsets_at(client, places, earliest())
        self._ends = offsets_at(client, places, latest(), read_committed=True)
        self._seen: object = None
        self._moved_s = time.monotonic()
        self._next_look_s = 0.0

    def is_read(self, assigned: Set[Partition]) -> bool:
        """Return whether the group has committed the end of each partition that is not `assigned` to this member.

        Raises:
            BrokerError: it has not, and nobody has made progress for long.
        """
        others = self._ends.keys() - assigned
        if not others:
            return True
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + LOOK_S
        fault: BrokerError | None = None
        try:
            committed = committed_offsets(self._client, self._group)
        except BrokerError as refused:  # the coordinator may move
            fault, committed = refused, {}
        left = {place: count for place in others if (count := self._left(place, committed.get(place)))}
        if not left and fault is None:
            return True
        seen = (frozenset(assigned), tuple(sorted(left.items())))
        if seen != self._seen:
            self._seen, self._moved_s = seen, now_s
        elif now_s - self._moved_s > OTHERS_S:
            raise fault or BrokerError(self._unread(left))
        return False

    def _left(self, place: Partition, committed: int | None) -> int:
        if committed is None:
            return 0 if self._begins_at_end else self._ends[place] - self._starts.get(place, 0)
        return max(0, self._ends[place] - committed)

    def _unread(self, left: Mapping[Partition, int]) -> str:
        places = [f"{topic}-{number} ({count})" for (topic, number), count in sorted(left.items())]
        more = f" and {len(places) - NAMES_MAX} more" if len(places) > NAMES_MAX else ""
        return (
            f"group {self._group}: not everything is read: other members hold partitions and have read nothing for"
            f" {OTHERS_S:.0f} s; unread records: {', '.join(places[:NAMES_MAX])}{more}"
        )


def _number(value: int | None) -> int:
    assert value is not None
    return value


def _position(place: Partition, offset: int, leader_epoch: int | None = None) -> TopicPartition:
    from confluent_kafka import TopicPartition

    if leader_epoch is None or leader_epoch < 0:
        return TopicPartition(*place, offset)
    return TopicPartition(*place, offset, leader_epoch=leader_epoch)
