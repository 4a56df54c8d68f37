"""WriteTxnMarkers 1-2 in the network process: split by producer and partition, each asked of its owner.

Brokers send it to each other in Apache Kafka; `Admin.abortTransaction` and `kafka-transactions.sh abort` use it, too:
they end a transaction that nobody ends any more. Here the coordinators write the markers of their transactions
themselves, over rings of their own.

A marker for `__consumer_offsets` goes to the coordinator of that partition. The shard of its groups is the only writer
of the log, and decides with the marker what becomes of the transaction's offsets.

`transaction_version` of v2 says how strictly the epoch is checked: 2 refuses a marker of the epoch of the data.

Left out: markers for internal topics other than `__consumer_offsets`, because no transaction writes to these topics.
Such a request gets INVALID_TOPIC_EXCEPTION.

Source: `KafkaApis.handleWriteTxnMarkersRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from msgspec import structs

from appliance.channels.request_channel import CONNECTION_LIMIT, ERROR, marker_request
from appliance.channels.roles import COORDINATOR
from appliance.cluster import CONSUMER_OFFSETS, is_internal
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.marker_results import markers_response
from appliance.protocol.messages import decode_response
from appliance.requests.log_handlers.partitioned import PartitionedHandler, PartitionedRequest, Resume
from appliance.requests.own_request import hand_over_own
from appliance.requests.session import Request
from appliance.requests.steps import Steps
from appliance.requests.topic_routes import PartitionRoute
from appliance.requests.worker_lines import Answer, Operation

TIMEOUT_MS = 30_000
"""How long an answer may wait for followers: the request does not say."""
OWN_VERSION = 2
"""Of the requests to coordinators, which say the transaction's version."""
_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_TIMED_OUT = int(ErrorCode.REQUEST_TIMED_OUT)


class WriteTxnMarkersHandler(PartitionedHandler):
    """Serves WriteTxnMarkers for one network process."""

    __slots__ = ()

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        """Answers at once, or when the owners have.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: WriteTxnMarkersRequest = yield from self._decoded(pending, view, position, end)
        partitioned = _PartitionedMarkers(pending, self.resume, request)
        yield None
        with self._entered(partitioned):
            for item, place in enumerate(partitioned.places):
                self._begin_partition(partitioned, item, place)
                yield from self._paced(partitioned, item + 1)
            yield from self._all_answered(partitioned)
        outcomes = (
            (place.marker, place.topic, place.partition, error)
            for place, error in zip(partitioned.places, partitioned.errors, strict=True)
        )
        yield from self._answer(pending, markers_response(partitioned.markers, outcomes))

    def _begin_partition(self, partitioned: _PartitionedMarkers, item: int, place: _Place) -> None:
        route = self._route(place.topic, place.partition)
        marker = partitioned.markers[place.marker]
        if route is None:
            partitioned.errors[item] = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif is_internal(place.topic) and place.topic != CONSUMER_OFFSETS:
            partitioned.errors[item] = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
        elif marker.producer_id < 0 or marker.producer_epoch < 0:
            partitioned.errors[item] = int(ErrorCode.INVALID_REQUEST)
        elif self._table.is_offline(route.row, route.incarnation):
            partitioned.errors[item] = int(ErrorCode.KAFKA_STORAGE_ERROR)
        elif place.topic == CONSUMER_OFFSETS:
            self._ask_coordinator(partitioned, item, route, marker)
        else:
            asked = _operation(partitioned, item, route, marker)
            if not partitioned.ask_leader(item, route, asked, table=self._table, lines=self._lines):
                partitioned.errors[item] = _NOT_LEADER

    def _ask_coordinator(
        self, partitioned: _PartitionedMarkers, item: int, route: PartitionRoute, marker: WritableTxnMarker
    ) -> None:
        session = partitioned.pending.session
        if route.leader != session.slot:
            partitioned.errors[item] = _NOT_LEADER
            return
        topics = (WritableTxnMarkerTopic(CONSUMER_OFFSETS, (route.partition,)),)
        only = WriteTxnMarkersRequest((structs.replace(marker, topics=topics),))
        hand_over = partial(
            self._coordinators.ask_shard, partition=route.partition, part=_MarkerForOffsets(partitioned, item)
        )
        partitioned.placed(item, COORDINATOR)
        if not hand_over_own(
            self._pool, session, ApiKey.WRITE_TXN_MARKERS, OWN_VERSION, only, hand_over=hand_over
        ):
            partitioned.coordinator_answered(item, _NOT_LEADER)


@dataclass(frozen=True, slots=True)
class _Place:
    """A partition, and which of the request's markers is for it."""

    marker: int
    topic: str
    partition: int


def _operation(
    partitioned: _PartitionedMarkers, item: int, route: PartitionRoute, marker: WritableTxnMarker
) -> Operation:
    return marker_request(
        request_id=partitioned.request_id,
        item=item,
        row=route.row,
        incarnation=route.incarnation,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=max(marker.coordinator_epoch, 0),
        commit=marker.transaction_result,
        transaction_version=marker.transaction_version,
        timeout_ms=TIMEOUT_MS,
        connection=partitioned.pending.session.connection_id % CONNECTION_LIMIT,
    )


class _PartitionedMarkers(PartitionedRequest):
    """One WriteTxnMarkers request in flight. `errors` by item, as `places`."""

    __slots__ = ("errors", "markers", "places")

    def __init__(self, pending: Request, resume: Resume, request: WriteTxnMarkersRequest) -> None:
        super().__init__(pending, resume)
        self.markers = request.markers
        # A partition that is named twice for a marker gets it once.
        self.places = list(
            dict.fromkeys(
                _Place(number, topic.name, partition)
                for number, marker in enumerate(request.markers)
                for topic in marker.topics
                for partition in topic.partition_indexes
            )
        )
        self.errors = [0] * len(self.places)

    def _take(self, item: int, answer: Answer) -> None:
        self.errors[item] = answer[ERROR]

    def _take_error(self, item: int, error: int) -> None:
        self.errors[item] = error

    def _lose(self, item: int) -> None:
        """The marker may be there or not; a second one does no harm."""
        self.errors[item] = _TIMED_OUT


class _MarkerForOffsets:
    """A `PartOfRequest`: takes a coordinator's answer about one partition of `__consumer_offsets`."""

    __slots__ = ("_item", "_request")

    def __init__(self, partitioned: _PartitionedMarkers, item: int) -> None:
        self._request = partitioned
        self._item = item

    def answered(self, frame: bytes) -> None:
        """The marker is committed, or has failed. An empty frame: the session has ended."""
        error = _NOT_LEADER
        if frame:
            response = decode_response(ApiKey.WRITE_TXN_MARKERS, OWN_VERSION, memoryview(frame))[1]
            error = response.markers[0].topics[0].partitions[0].error_code
        self._request.coordinator_answered(self._item, error)

    def refused(self, _why: str) -> None:
        """The coordinator could not read our frame."""
        self._request.coordinator_answered(self._item, int(ErrorCode.UNKNOWN_SERVER_ERROR))

    @staticmethod
    def own(request: WriteTxnMarkersRequest) -> WriteTxnMarkersRequest:
        """Return the request, whose only partition is this coordinator's."""
        return request
