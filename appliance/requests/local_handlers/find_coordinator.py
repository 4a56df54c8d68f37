"""FindCoordinator 0-6: the broker slot that leads the partition of an internal topic to which a name belongs.

| kind of key | topic | settings of the topic |
|---|---|---|
| 0, a group | `__consumer_offsets` | `offsets.topic.*` |
| 1, a transactional id | `__transaction_state` | `transaction.state.log.*` |

The topic is created when the first name is asked for. Where the partition has no leader, the answer is
COORDINATOR_NOT_AVAILABLE, which clients take as "ask again". INVALID_REQUEST is for kinds of keys that nobody knows.

Left out: coordinators of share groups. A request for such a coordinator gets COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.channels.control_channel import CreateTopics
from appliance.cluster import CONSUMER_OFFSETS, NO_LEADER, TRANSACTION_STATE
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
_TOPICS: Final[Mapping[int, str]] = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}
_UNSERVED: Final[Mapping[int, tuple[ErrorCode, str | None]]] = {
    SHARE: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "Share groups are not served yet."),
}


def find_coordinator(request: FindCoordinatorRequest, view: LocalView) -> Steps[FindCoordinatorResponse]:
    """Answers from the image; where the topic is not there yet, the controller creates it first."""
    keys = request.coordinator_keys or (request.key,)
    name = _TOPICS.get(request.key_type)
    if name is None:
        error, why = _UNSERVED.get(request.key_type, (ErrorCode.INVALID_REQUEST, None))
        return _response((yield from in_pieces(lambda key: _refused(key, error, why), keys)))
    if name not in view.image.topics:
        topic = new_topic(name, view.settings)
        assert topic is not None
        yield Ask(CreateTopics((topic,), automatic=True), CREATE_TIMEOUT_MS)
    return _response((yield from in_pieces(lambda key: _found(key, name, view), keys)))


def _found(key: str, name: str, view: LocalView) -> Coordinator:
    topic = view.image.topics.get(name)
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
