"""Permits and markers: what the transaction coordinator sends to the owners of partitions.

    WriteMarkers ──→ one marker for each partition ──→ all have it ──→ `then`
                       │ errors worth another try: the partition rests, then again, for ever
                       ├ the topic or the partition is not there any more: nothing to write
                       └ fenced: the whole effect is dropped, and the transaction stays in its Prepare state
    permits      ──→ one for each partition ──→ each was taken or refused ──→ `then`

A permit is for a transaction that is open. So it is sent only if the transaction is still the same and no decision is
known; markers are asked for after their decision. The rings keep the order, so no permit arrives behind the marker of
its transaction. Markers for `__consumer_offsets` may take the ring of another process (`write_offsets_marker`), so they
wait until no permit for the same producer and partition is in flight.

A marker that a partition gets twice does no harm: after the death of a worker or of a coordinator it is sent again.

Work is done in turns: an effect or a request with many partitions gets PARTITIONS_A_TURN, then others have theirs. A
turn looks at LOOKS_A_TURN partitions at most. What waits is bounded by the partitions of the open transactions. A
partition that does not answer well rests for a pause that doubles from PAUSE_MS to PAUSE_MAX_MS, and all markers for it
with it; a new image, or a worker that serves, ends the pauses.

Who is slow delays nobody else. A worker answers a permit at once, but a marker when the followers have it, up to
seconds later. So each worker has a line of its own (`marker_lines`, decisions 0098 and 0118):

    permits in flight     PERMITS_MAX of each worker
    markers in flight     IN_FLIGHT_MAX of each worker; of one partition less than the worker has free:
                          one slow partition gets 1/2 of them, two get 1/3 each, k get 1/(k+1) each
    markers unread        none is put on the ring of a worker that has UNREAD_MAX messages to read

What is above its bound, or finds no room on the ring of its worker, waits in the line of that worker. There
transactions take turns, and so do requests for permits, whatever the number of their partitions.

Source: `TransactionMarkerChannelManager.scala`, `TransactionMarkerRequestCompletionHandler.scala` of Apache Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from appliance.channels.roles import Role
from appliance.clock import Clock
from appliance.cluster import CONSUMER_OFFSETS, DELAYED_TRANSACTIONS, TopicPartition
from appliance.control.coordinator.marker_lines import (
    IN_FLIGHT_MAX,
    PARTITIONS_A_SLICE,
    UNREAD_MAX,
    Lane,
    Line,
)
from appliance.control.coordinator.transaction.effects import Marker
from appliance.journal import RateLimited
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode

PARTITIONS_A_TURN: Final = 64
LOOKS_A_TURN: Final = 512
PAUSE_MS: Final = 20
PAUSE_MAX_MS: Final = 1_000

_FINAL: Final = frozenset(
    {int(ErrorCode.INVALID_PRODUCER_EPOCH), int(ErrorCode.TRANSACTION_COORDINATOR_FENCED)}
)
_NO_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)

Done = Callable[[int], None]
WriteOffsetsMarker = Callable[[int, Marker, Done], None]
"""(partition of `__consumer_offsets`, marker, done), as `GroupMachines.write_marker`."""

_log = logging.getLogger(__name__)


class Places(Protocol):
    """What is seen of the metadata image."""

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the image names the partition."""
        ...

    def log_place(self, partition: TopicPartition) -> LogPlace | None:
        """Return where it is led; None where nobody leads it."""
        ...


class Owners(Protocol):
    """What is asked of the owners of partitions: `PartitionAccess`."""

    def permit(self, place: LogPlace, producer_id: int, producer_epoch: int, done: Done) -> bool: ...

    def write_marker(
        self,
        place: LogPlace,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
        done: Done,
    ) -> bool: ...

    def unread(self, worker: Role) -> int:
        """Return how many messages are on the ring of the worker that it has not read; 0 where it has no ring."""
        ...


class _Markers:
    """A `WriteMarkers` under way. `left` has no marker yet, as far as is known; `to_send` gives those not sent."""

    __slots__ = ("left", "log_partition", "marker", "then", "to_send")

    def __init__(
        self,
        log_partition: int,
        marker: Marker,
        partitions: Iterable[TopicPartition],
        then: Callable[[], None],
    ) -> None:
        self.log_partition = log_partition
        self.marker = marker
        self.left = set(partitions)
        self.to_send: Iterator[TopicPartition] = iter(sorted(self.left))
        self.then: Callable[[], None] | None = then


class _Permits:
    """Permits of one request under way. `left` counts those that are not answered."""

    __slots__ = ("is_valid", "left", "producer_epoch", "producer_id", "then", "to_send")

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        is_valid: Callable[[TopicPartition], bool],
        then: Callable[[], None],
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.left = len(partitions)
        self.to_send: Iterator[TopicPartition] = iter(partitions)
        self.is_valid = is_valid
        self.then = then


class _Resting:
    """A partition that answered with an error, and the markers that wait for the end of its pause."""

    __slots__ = ("is_over", "pause_ms", "waiting")

    def __init__(self) -> None:
        self.pause_ms = PAUSE_MS
        self.is_over = True
        self.waiting: list[_Markers] = []


class MarkerWriter:
    """The permits and markers of one coordinator process. Single-threaded; `flush` once in every turn.

    Args:
        write_offsets_marker: writes a marker to a partition of `__consumer_offsets`.
        later: (delay ms, action) → the action is called then.
        wake_services: called when a partition of `__delayed_transactions` has a marker.
    """

    def __init__(
        self,
        owners: Owners,
        places: Places,
        *,
        write_offsets_marker: WriteOffsetsMarker,
        later: Callable[[int, Callable[[], None]], object],
        clock: Clock,
        wake_services: Callable[[], object] = lambda: None,
    ) -> None:
        self._owners = owners
        self._wake_services = wake_services
        self._places = places
        self._write_offsets_marker = write_offsets_marker
        self._later = later
        self._ready: deque[_Markers | _Permits] = deque()
        self._again: deque[tuple[_Markers | _Permits, TopicPartition]] = deque()
        # By worker; None is for `__consumer_offsets`, whose markers go through its shards.
        self._lines: dict[Role | None, Line[_Markers, _Permits]] = {}
        self._looks = 0
        self._by_log: dict[int, set[_Markers]] = {}
        self._resting: dict[TopicPartition, _Resting] = {}
        self._permits_in_flight: dict[tuple[int, TopicPartition], int] = {}
        self._complain = RateLimited(_log.warning, clock)
        self.markers = 0
        """How many markers were written, those that were sent again included."""

    # What is to be sent

    def write(
        self,
        log_partition: int,
        marker: Marker,
        partitions: frozenset[TopicPartition],
        then: Callable[[], None],
    ) -> None:
        """Write the marker to each of the partitions, then call `then`: see `effects.WriteMarkers`."""
        job = _Markers(log_partition, marker, partitions, then)
        self._by_log.setdefault(log_partition, set()).add(job)
        if job.left:
            self._ready.append(job)
        else:
            self._end(job)

    def permit(
        self,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        is_valid: Callable[[TopicPartition], bool],
        then: Callable[[], None],
    ) -> None:
        """Permit the producer to open its transaction in these partitions, then call `then`, whatever they answer.

        A partition whose owner is away forgets nothing: the producer's batch is refused there, and the network process
        asks again. `is_valid` is asked of each partition at the moment in which its permit is sent.
        """
        job = _Permits(producer_id, producer_epoch, partitions, is_valid=is_valid, then=then)
        if job.left:
            self._ready.append(job)
        else:
            then()

    def forget(self, log_partition: int) -> None:
        """The partition of `__transaction_state` is given away: its next coordinator sends its markers again."""
        for job in self._by_log.pop(log_partition, ()):
            job.then = None

    # Turns

    def flush(self) -> bool:
        """Send what waits. False: there is more that no answer announces; call again soon."""
        self._looks = LOOKS_A_TURN
        for worker, line in tuple(self._lines.items()):
            line.begin_turn(self._room(worker))
            if line.waits:
                self._drain_permits(line)
                self._drain_markers(line)
        again, ready = self._again, self._ready
        while again and self._looks > 0:
            job, partition = again.popleft()
            self._send(job, partition)
        while ready and self._looks > 0:
            waiting = ready.popleft()
            for _ in range(min(PARTITIONS_A_TURN, self._looks)):
                next_one = next(waiting.to_send, None)
                if next_one is None:
                    break
                self._send(waiting, next_one)
            else:
                ready.append(waiting)
        return self._looks > 0 and not any(line.waits_for_reader for line in self._lines.values())

    def _room(self, worker: Role | None) -> int:
        """How many markers may be put on the ring of a worker now. Shards write those for `__consumer_offsets`."""
        return IN_FLIGHT_MAX if worker is None else UNREAD_MAX - self._owners.unread(worker)

    def _drain_permits(self, line: Line[_Markers, _Permits]) -> None:
        """Send permits that wait in a line, before markers: a client waits for each of them."""
        turns = line.permits_waiting
        while turns and line.may_permit and self._looks > 0:
            job, partitions = turns.turn()
            was_served = False
            for _ in range(PARTITIONS_A_SLICE):
                if not partitions or not line.may_permit or self._looks <= 0:
                    break
                self._looks -= 1
                self._send_permit(job, partitions.popleft())
                was_served = was_served or not line.is_full
            turns.end_turn(job, was_served=was_served)

    def _drain_markers(self, line: Line[_Markers, _Permits]) -> None:
        """Send markers that wait in a line as far as there is room: a few of each transaction, then of the next."""
        turns = line.turns
        while turns and line.may_mark and self._looks > 0:
            job, lanes = turns.turn()
            was_served = False
            for _ in range(PARTITIONS_A_SLICE):
                if not lanes or not line.may_mark or self._looks <= 0:
                    break
                lane = lanes.popleft()
                lane.is_queued = False
                if lane.waiting and line.has_share(lane):
                    self._looks -= 1
                    self._send_marker(lane.waiting.popleft(), lane.partition, is_next=True)
                line.queue(lane)
                line.tidy(lane)
                was_served = was_served or not line.is_full
            turns.end_turn(job, was_served=was_served)

    def places_changed(self) -> None:
        """Try everything again that rests, and look up again what waits for a worker that has lost its partition.

        Call it when there is a new image, or when a worker serves.
        """
        for partition, resting in self._resting.items():
            resting.is_over = True
            self._wake(resting, partition)
        for worker, line in self._lines.items():
            if worker is not None:
                self._leave(line, worker)

    def _leave(self, line: Line[_Markers, _Permits], worker: Role) -> None:
        """Look again at what waits for a worker and is of partitions that it does not own any more."""
        for partition, lane in line.lanes.items():
            if lane.waiting and not self._is_at(partition, worker):
                self._again.extend((job, partition) for job in lane.waiting)
                lane.waiting.clear()
        if any(not self._is_at(partition, worker) for partition in line.permits_waiting.items()):
            self._again.extend(line.permits_waiting.take_all())

    def _is_at(self, partition: TopicPartition, worker: Role) -> bool:
        place = self._places.log_place(partition)
        return place is not None and place.worker == worker

    # One partition

    def _send(self, job: _Markers | _Permits, partition: TopicPartition) -> None:
        """Send one, or leave it where it waits for what is in its way."""
        self._looks -= 1
        if isinstance(job, _Permits):
            self._send_permit(job, partition)
        else:
            self._send_marker(job, partition)

    def _line(self, worker: Role | None) -> Line[_Markers, _Permits]:
        line = self._lines.get(worker)
        if line is None:
            line = self._lines[worker] = Line()
            line.begin_turn(self._room(worker))
        return line

    def _send_permit(self, job: _Permits, partition: TopicPartition) -> None:
        place = self._places.log_place(partition)
        if place is None or not job.is_valid(partition):
            self._permitted(job)
            return
        line = self._line(place.worker)
        if not line.may_permit:
            line.permits_waiting.put(job, partition)
            return
        key = (job.producer_id, partition)
        line.permits += 1
        in_flight = self._permits_in_flight
        in_flight[key] = in_flight.get(key, 0) + 1

        def ended() -> None:
            line.permits -= 1
            if in_flight[key] == 1:
                del in_flight[key]
            else:
                in_flight[key] -= 1

        def answered(_error: int) -> None:
            ended()
            self._permitted(job)

        if not self._owners.permit(place, job.producer_id, job.producer_epoch, answered):
            ended()
            line.is_full = True
            line.permits_waiting.put(job, partition, first=True)

    def _permitted(self, job: _Permits) -> None:
        job.left -= 1
        if not job.left:
            job.then()

    def _send_marker(self, job: _Markers, partition: TopicPartition, *, is_next: bool = False) -> None:
        """Send a marker, or let it wait. `is_next`: it is the next one of those that wait for its partition."""
        if job.then is None:
            return
        if not self._places.has(partition):
            self._marked(job, partition)  # deleted, or created again with fewer partitions
            return
        resting = self._resting.get(partition)
        if resting is not None and not resting.is_over:
            resting.waiting.append(job)
            return
        marker = job.marker
        place: LogPlace | None = None
        is_offsets = partition.topic == CONSUMER_OFFSETS
        if is_offsets:
            if (marker.producer_id, partition) in self._permits_in_flight:
                self._rest(job, partition)
                return
            line = self._line(None)
        else:
            place = self._places.log_place(partition)
            if place is None:
                self._answered(job, partition, _NO_LEADER)
                return
            line = self._line(place.worker)
        lane = line.lane(partition)
        if not line.may_mark or not line.has_share(lane) or (lane.waiting and not is_next):
            line.park(lane, job, first=is_next)
            return
        self._put_marker(job, line, lane, place)

    def _put_marker(
        self,
        job: _Markers,
        line: Line[_Markers, _Permits],
        lane: Lane[_Markers],
        place: LogPlace | None,
    ) -> None:
        marker, partition = job.marker, lane.partition

        def answered(error: int) -> None:
            line.markers -= 1
            lane.in_flight -= 1
            line.queue(lane)
            line.tidy(lane)
            self._answered(job, partition, error)

        line.markers += 1
        line.room -= 1
        lane.in_flight += 1
        if place is None:
            self._write_offsets_marker(partition.partition, marker, answered)
        elif not self._owners.write_marker(
            place,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            commit=marker.commit,
            transaction_version=marker.transaction_version,
            done=answered,
        ):
            line.markers -= 1
            lane.in_flight -= 1
            line.is_full = True
            line.park(lane, job, first=True)

    def _answered(self, job: _Markers, partition: TopicPartition, error: int) -> None:
        if not error:
            self.markers += 1
            if partition.topic == DELAYED_TRANSACTIONS:
                self._wake_services()
            if partition in self._resting:
                self._wake(self._resting.pop(partition), partition)
            self._marked(job, partition)
        elif job.then is None:
            return
        elif error in _FINAL:
            self._complain(
                f"{partition} refuses the marker of producer {job.marker.producer_id}, epoch"
                f" {job.marker.producer_epoch}, with {ErrorCode(error).name}: the transaction stays as it is"
            )
            self._drop(job)
        else:
            self._rest(job, partition)

    def _marked(self, job: _Markers, partition: TopicPartition) -> None:
        job.left.discard(partition)
        if not job.left:
            self._end(job)

    def _end(self, job: _Markers) -> None:
        then = job.then
        self._drop(job)
        if then is not None:
            then()

    def _drop(self, job: _Markers) -> None:
        job.then = None
        jobs = self._by_log.get(job.log_partition)
        if jobs is not None:
            jobs.discard(job)
            if not jobs:
                del self._by_log[job.log_partition]

    # Pauses

    def _rest(self, job: _Markers, partition: TopicPartition) -> None:
        resting = self._resting.get(partition)
        if resting is None:
            resting = self._resting[partition] = _Resting()
        resting.waiting.append(job)
        if resting.is_over:
            resting.is_over = False
            pause_ms = resting.pause_ms
            resting.pause_ms = min(2 * pause_ms, PAUSE_MAX_MS)
            self._later(pause_ms, lambda: self._pause_over(partition, resting))

    def _pause_over(self, partition: TopicPartition, resting: _Resting) -> None:
        resting.is_over = True
        if not resting.waiting and self._resting.get(partition) is resting:
            del self._resting[partition]
        self._wake(resting, partition)

    def _wake(self, resting: _Resting, partition: TopicPartition) -> None:
        waiting, resting.waiting = resting.waiting, []
        self._again.extend((job, partition) for job in waiting)

    @property
    def owed(self) -> int:
        """How many transactions are decided and lack a marker."""
        return sum(map(len, self._by_log.values()))

    def statistics(self) -> dict[str, int]:
        """Transactions that owe markers, markers and permits in flight, partitions that rest, what waits."""
        lines = self._lines.values()
        return {
            "owed": self.owed,
            "in_flight": sum(line.markers + line.permits for line in lines),
            "resting": len(self._resting),
            "waiting": len(self._ready)
            + len(self._again)
            + sum(len(line.permits_waiting) for line in lines)
            + sum(len(lane.waiting or ()) for line in lines for lane in line.lanes.values()),
        }
