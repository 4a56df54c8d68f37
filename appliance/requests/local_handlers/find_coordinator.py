"""FindCoordinator 0-6: the broker slot that leads the partition of `__consumer_offsets` to which a group belongs.

The topic is created when the first group asks for it, with the settings of `offsets.topic.*`. Where the partition has
no leader, the answer is COORDINATOR_NOT_AVAILABLE, which clients take as "ask again". INVALID_REQUEST is for kinds of
keys that nobody knows.

Left out: coordinators of transactions and of share groups. A transactional client gets
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, because every client library treats this error as fatal. With other errors some
of them retry without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.channels.control_channel import CreateTopics
from appliance.cluster import CONSUMER_OFFSETS, NO_LEADER
from appliance.protocol.apis.find_coordinator import (
    GROUP,
    SHARE,
    TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.requests.local_handlers.new_topics import new_topic
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps, in_pieces

CREATE_TIMEOUT_MS = 10_000
_UNSERVED: Final[Mapping[int, tuple[ErrorCode, str | None]]] = {
    TRANSACTION: (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactions are not served yet."),
    SHARE: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "Share groups are not served yet."),
}


def find_coordinator(request: FindCoordinatorRequest, view: LocalView) -> Steps[FindCoordinatorResponse]:
    """Answers from the image; where the topic is not there yet, the controller creates it first."""
    keys = request.coordinator_keys or (request.key,)
    if request.key_type != GROUP:
        error, why = _UNSERVED.get(request.key_type, (ErrorCode.INVALID_REQUEST, None))
        return _response((yield from in_pieces(lambda key: _refused(key, error, why), keys)))
    if CONSUMER_OFFSETS not in view.image.topics:
        topic = new_topic(CONSUMER_OFFSETS, view.settings)
        assert topic is not None
        yield Ask(CreateTopics((topic,), automatic=True), CREATE_TIMEOUT_MS)
    return _response((yield from in_pieces(lambda key: _found(key, view), keys)))


def _found(key: str, view: LocalView) -> Coordinator:
    topic = view.image.topics.get(CONSUMER_OFFSETS)
    if topic is not None:
        leader = topic.partitions[group_partition(key, len(topic.partitions))].leader
        for slot in view.brokers():
            if slot.node_id == leader != NO_LEADER:
                return Coordinator(key, slot.node_id, slot.host, slot.port)
    return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)


def _refused(key: str, error: ErrorCode, why: str | None) -> Coordinator:
    return Coordinator(key, error_code=error, error_message=why or error.message)


def _response(coordinators: tuple[Coordinator, ...]) -> FindCoordinatorResponse:
    """In the shape of every version: the first one alone (up to v3), and all of them."""
    first = coordinators[0]
    return FindCoordinatorResponse(
        first.error_code, first.error_message, first.node_id, first.host, first.port, coordinators
    )
