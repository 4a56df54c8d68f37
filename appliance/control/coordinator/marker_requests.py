"""WriteTxnMarkers 1-2, as far as it is about `__consumer_offsets`: the way in for an administrator.

`kafka-transactions.sh abort` ends a hanging transaction of a producer of which its coordinator knows nothing any more.
In the log of the groups such a one keeps a whole group from starting, since readers of stable offsets wait for the
marker. A network process sends the partitions of `__consumer_offsets` here, and those of other topics to their owners.

| a partition is answered | when |
|---|---|
| UNKNOWN_TOPIC_OR_PARTITION | it is not one of `__consumer_offsets` |
| NOT_LEADER_OR_FOLLOWER | its coordinator is away, or loads (as in Kafka: brokers ask again then) |
| what became of the append | else |

Source: `KafkaApis.handleWriteTxnMarkersRequest`, `GroupCoordinatorService.completeTransaction` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.cluster import CONSUMER_OFFSETS
from appliance.control.coordinator.transaction.effects import Marker
from appliance.protocol.apis.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from appliance.protocol.errors import ErrorCode
from appliance.protocol.marker_results import markers_response

_UNKNOWN: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_AS_NOT_LEADER: Final = frozenset(
    int(error)
    for error in (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)

WriteMarker = Callable[[int, Marker, Callable[[int], None]], None]


def write_markers(
    request: WriteTxnMarkersRequest,
    *,
    write_marker: WriteMarker,
    answer: Callable[[WriteTxnMarkersResponse], None],
) -> None:
    """Write each marker to each of its partitions once, and answer when all have an outcome."""
    _Writing(request, answer).begin(write_marker)


class _Writing:
    """One request under way. `_errors`: (number of the marker, topic, partition) → outcome."""

    def __init__(
        self, request: WriteTxnMarkersRequest, answer: Callable[[WriteTxnMarkersResponse], None]
    ) -> None:
        self._request = request
        self._answer = answer
        self._errors: dict[tuple[int, str, int], int] = {}
        self._waits_for = 1

    def begin(self, write_marker: WriteMarker) -> None:
        for number, asked in enumerate(self._request.markers):
            marker = Marker(
                asked.producer_id,
                asked.producer_epoch,
                asked.transaction_result,
                asked.coordinator_epoch,
                asked.transaction_version,
            )
            for topic in asked.topics:
                for partition in topic.partition_indexes:
                    place = number, topic.name, partition
                    if place in self._errors:
                        continue
                    self._errors[place] = _UNKNOWN
                    if topic.name == CONSUMER_OFFSETS:
                        self._waits_for += 1
                        write_marker(partition, marker, self._ended(place))
        self._ended_one()

    def _ended(self, place: tuple[int, str, int]) -> Callable[[int], None]:
        def ended(error: int) -> None:
            self._errors[place] = _NOT_LEADER if error in _AS_NOT_LEADER else error
            self._ended_one()

        return ended

    def _ended_one(self) -> None:
        self._waits_for -= 1
        if not self._waits_for:
            outcomes = ((*place, error) for place, error in self._errors.items())
            self._answer(markers_response(self._request.markers, outcomes))
