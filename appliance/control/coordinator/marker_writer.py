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

Work is done in turns: an effect or a request with many partitions gets PARTITIONS_A_TURN, then others have theirs. With
IN_FLIGHT_MAX in flight, or no room on a ring, the rest waits. What waits is bounded by the partitions of the open
transactions. A partition that does not answer well rests for a pause that doubles from PAUSE_MS to PAUSE_MAX_MS, and
all markers for it with it; a new image, or a worker that serves, ends the pauses.

Source: `TransactionMarkerChannelManager.scala`, `TransactionMarkerRequestCompletionHandler.scala` of Apache Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from appliance.clock import Clock
from appliance.cluster import CONSUMER_OFFSETS, TopicPartition
from appliance.control.coordinator.transaction.effects import Marker
from appliance.journal import RateLimited
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode

PARTITIONS_A_TURN: Final = 64
IN_FLIGHT_MAX: Final = 2048
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
    """

    def __init__(
        self,
        owners: Owners,
        places: Places,
        *,
        write_offsets_marker: WriteOffsetsMarker,
        later: Callable[[int, Callable[[], None]], object],
        clock: Clock,
    ) -> None:
        self._owners = owners
        self._places = places
        self._write_offsets_marker = write_offsets_marker
        self._later = later
        self._ready: deque[_Markers | _Permits] = deque()
        self._again: deque[tuple[_Markers, TopicPartition]] = deque()
        # What found no room on its ring, in the middle of a job.
        self._no_room: deque[tuple[_Markers | _Permits, TopicPartition]] = deque()
        self._by_log: dict[int, set[_Markers]] = {}
        self._resting: dict[TopicPartition, _Resting] = {}
        self._permits_in_flight: dict[tuple[int, TopicPartition], int] = {}
        self._in_flight = 0
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
        """Send what waits. False: there is no room on a ring; call again soon."""
        while self._no_room and self._in_flight < IN_FLIGHT_MAX:
            job, partition = self._no_room[0]
            if not self._send(job, partition):
                return False
            self._no_room.popleft()
        while self._again and self._in_flight < IN_FLIGHT_MAX:
            markers, partition = self._again.popleft()
            if not self._send(markers, partition):
                self._no_room.append((markers, partition))
                return False
        while self._ready and self._in_flight < IN_FLIGHT_MAX:
            waiting = self._ready.popleft()
            for _ in range(min(PARTITIONS_A_TURN, IN_FLIGHT_MAX - self._in_flight)):
                next_one = next(waiting.to_send, None)
                if next_one is None:
                    break
                if not self._send(waiting, next_one):
                    self._no_room.append((waiting, next_one))
                    self._ready.append(waiting)
                    return False
            else:
                self._ready.append(waiting)
        return True

    def places_changed(self) -> None:
        """There is a new image, or a worker serves: what rests is worth another try."""
        for partition, resting in self._resting.items():
            resting.is_over = True
            self._wake(resting, partition)

    # One partition

    def _send(self, job: _Markers | _Permits, partition: TopicPartition) -> bool:
        if isinstance(job, _Permits):
            return self._send_permit(job, partition)
        return self._send_marker(job, partition)

    def _send_permit(self, job: _Permits, partition: TopicPartition) -> bool:
        place = self._places.log_place(partition)
        if place is None or not job.is_valid(partition):
            self._permitted(job)
            return True
        key = (job.producer_id, partition)
        self._in_flight += 1
        in_flight = self._permits_in_flight
        in_flight[key] = in_flight.get(key, 0) + 1

        def answered(_error: int) -> None:
            self._in_flight -= 1
            if in_flight[key] == 1:
                del in_flight[key]
            else:
                in_flight[key] -= 1
            self._permitted(job)

        if self._owners.permit(place, job.producer_id, job.producer_epoch, answered):
            return True
        self._in_flight -= 1
        in_flight[key] -= 1
        if not in_flight[key]:
            del in_flight[key]
        return False

    def _permitted(self, job: _Permits) -> None:
        job.left -= 1
        if not job.left:
            job.then()

    def _send_marker(self, job: _Markers, partition: TopicPartition) -> bool:
        if job.then is None:
            return True
        if not self._places.has(partition):
            self._marked(job, partition)  # deleted, or created again with fewer partitions
            return True
        resting = self._resting.get(partition)
        if resting is not None and not resting.is_over:
            resting.waiting.append(job)
            return True
        marker = job.marker
        is_offsets = partition.topic == CONSUMER_OFFSETS
        if is_offsets and (marker.producer_id, partition) in self._permits_in_flight:
            self._rest(job, partition)
            return True

        def answered(error: int) -> None:
            self._in_flight -= 1
            self._answered(job, partition, error)

        self._in_flight += 1
        if is_offsets:
            self._write_offsets_marker(partition.partition, marker, answered)
            return True
        place = self._places.log_place(partition)
        if place is None:
            answered(_NO_LEADER)
            return True
        if self._owners.write_marker(
            place,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            commit=marker.commit,
            transaction_version=marker.transaction_version,
            done=answered,
        ):
            return True
        self._in_flight -= 1
        return False

    def _answered(self, job: _Markers, partition: TopicPartition, error: int) -> None:
        if not error:
            self.markers += 1
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
        """Transactions that owe markers, markers and permits in flight, partitions that rest."""
        return {
            "owed": self.owed,
            "in_flight": self._in_flight,
            "resting": len(self._resting),
            "waiting": len(self._ready) + len(self._again) + len(self._no_room),
        }
