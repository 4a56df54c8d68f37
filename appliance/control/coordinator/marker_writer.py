"""Permits and markers of transactions, on their way to the partitions that they are for.

    permit    PERMIT_TRANSACTION to the owner of each partition ─→ all have answered, or are gone ─→ done
    write     a marker to each partition ─→ committed everywhere ─→ then
                  owner away, leader moved, too few replicas    the same marker again, after a pause
                  topic deleted                                 one partition less
                  producer or coordinator fenced                given up: the transaction stays decided, as in Kafka

Both go over the same ring to an owner, in the order of the coordinator's decisions. So no permit of a transaction is
left where its marker has been (decision 0092). Markers for `__consumer_offsets` go through the groups, because their
shard is that log's only writer.

A round is dropped when the partition of `__transaction_state` that it belongs to is given away: the next coordinator
sends all markers again, and an old one that came later could end the producer's next transaction.

The ring to a worker may be full. What finds no room waits in order and is tried again at the end of each turn.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from appliance.clock import Clock
from appliance.cluster import CONSUMER_OFFSETS, TopicPartition
from appliance.control.coordinator.transaction.effects import Marker
from appliance.journal import RateLimited
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode

AGAIN_MS: Final = 20
AGAIN_MAX_MS: Final = 1_000
"""The pause before a marker is sent again doubles up to here: a partition may have no leader for long."""
_FENCED: Final = frozenset(
    {int(ErrorCode.INVALID_PRODUCER_EPOCH), int(ErrorCode.TRANSACTION_COORDINATOR_FENCED)}
)

_log = logging.getLogger(__name__)

Done = Callable[[int], None]
WriteOffsetsMarker = Callable[[int, Marker, Done], None]
"""(partition of `__consumer_offsets`, marker, done): see `GroupMachines.write_marker`."""


class Places(Protocol):
    """Where partitions are led, as the newest image says."""

    def log_places(self, topic: str) -> tuple[LogPlace | None, ...]:
        """Return where each partition of `topic` is led, None where nowhere; empty without that topic."""
        ...


class MarkerRound:
    """A marker on its way to the partitions of one transaction."""

    __slots__ = ("is_dropped", "left", "log_partition", "marker", "pause_ms", "then")

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
        self.then = then
        self.pause_ms: dict[TopicPartition, int] = {}
        self.is_dropped = False


class MarkerWriter:
    """Single-threaded; `turn` at the end of each turn of the process.

    Args:
        write_offsets_marker: for the partitions of `__consumer_offsets`.
        later: calls an action after so many milliseconds.
    """

    __slots__ = (
        "_access",
        "_complain",
        "_known",
        "_later",
        "_no_room",
        "_places",
        "_rounds",
        "_write_offsets_marker",
    )

    def __init__(
        self,
        places: Places,
        access: PartitionAccess,
        clock: Clock,
        *,
        write_offsets_marker: WriteOffsetsMarker,
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._places = places
        self._access = access
        self._write_offsets_marker = write_offsets_marker
        self._later = later
        self._known: dict[str, tuple[LogPlace | None, ...]] = {}
        self._rounds: dict[int, set[MarkerRound]] = {}
        self._no_room: deque[Callable[[], bool]] = deque()
        self._complain = RateLimited(_log.warning, clock)

    def image_changed(self) -> None:
        """Partitions may be led elsewhere."""
        self._known.clear()

    # Permits

    def permit(
        self,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        done: Callable[[], None],
    ) -> None:
        """Tell the owners that the producer may write. `done` is called when all have answered.

        An owner that is away gets none. Its next life, or the next leader, has the network process ask again.
        """
        places = [place for place in map(self._place, partitions) if place is not None]
        left = len(places)
        if not left:
            done()
            return

        def answered(_error: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for place in places:
            self._send(partial(self._access.permit, place, producer_id, producer_epoch, answered))

    # Markers

    def write(self, each: MarkerRound) -> None:
        """Send the marker to every partition of the round."""
        if not each.left:
            each.then()
            return
        self._rounds.setdefault(each.log_partition, set()).add(each)
        for partition in list(each.left):
            self._write_one(each, partition)

    def drop(self, log_partition: int) -> None:
        """That partition of `__transaction_state` is given away: its rounds come to nothing."""
        for each in self._rounds.pop(log_partition, ()):
            each.is_dropped = True

    def _write_one(self, each: MarkerRound, partition: TopicPartition) -> None:
        if each.is_dropped or partition not in each.left:
            return
        marker = each.marker
        answered = partial(self._answered, each, partition)
        if partition.topic == CONSUMER_OFFSETS:
            self._write_offsets_marker(partition.partition, marker, answered)
            return
        places = self._places_of(partition.topic)
        if not 0 <= partition.partition < len(places):
            self._has_it(each, partition)  # the topic was deleted, and what was written with it
            return
        place = places[partition.partition]
        if place is None:
            self._again(each, partition)
            return
        self._send(partial(self._put, each, place, answered))

    def _put(self, each: MarkerRound, place: LogPlace, answered: Done) -> bool:
        if each.is_dropped:
            return True
        marker = each.marker
        return self._access.write_marker(
            place,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            commit=marker.commit,
            transaction_version=marker.transaction_version,
            done=answered,
        )

    def _answered(self, each: MarkerRound, partition: TopicPartition, error: int) -> None:
        if each.is_dropped:
            return
        if not error:
            self._has_it(each, partition)
        elif error in _FENCED:
            self._complain(
                f"{partition.topic}-{partition.partition} refused the marker of producer"
                f" {each.marker.producer_id} epoch {each.marker.producer_epoch}: {ErrorCode(error).name}."
                " The transaction stays decided and is not completed."
            )
            self._forget(each)
        else:
            self._again(each, partition)

    def _again(self, each: MarkerRound, partition: TopicPartition) -> None:
        pause_ms = each.pause_ms.get(partition, AGAIN_MS)
        each.pause_ms[partition] = min(2 * pause_ms, AGAIN_MAX_MS)
        self._later(pause_ms, partial(self._write_one, each, partition))

    def _has_it(self, each: MarkerRound, partition: TopicPartition) -> None:
        each.left.discard(partition)
        if not each.left and not each.is_dropped:
            self._forget(each)
            each.then()

    def _forget(self, each: MarkerRound) -> None:
        each.is_dropped = True
        rounds = self._rounds.get(each.log_partition)
        if rounds is not None:
            rounds.discard(each)
            if not rounds:
                del self._rounds[each.log_partition]

    # Sending

    def _send(self, put: Callable[[], bool]) -> None:
        if self._no_room or not put():
            self._no_room.append(put)

    def turn(self) -> bool:
        """Send what found no room. False: some of it still waits."""
        waiting = self._no_room
        while waiting:
            if not waiting[0]():
                return False
            waiting.popleft()
        return True

    def _place(self, partition: TopicPartition) -> LogPlace | None:
        places = self._places_of(partition.topic)
        return places[partition.partition] if 0 <= partition.partition < len(places) else None

    def _places_of(self, topic: str) -> tuple[LogPlace | None, ...]:
        places = self._known.get(topic)
        if places is None:
            places = self._known[topic] = self._places.log_places(topic)
        return places

    def statistics(self) -> dict[str, int]:
        return {"marker_rounds": sum(map(len, self._rounds.values())), "no_room": len(self._no_room)}
