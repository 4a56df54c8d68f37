"""What Produce answers and remembers of batches that fail. `produce.py` is compiled; this file is off its hot path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from appliance.protocol.errors import ErrorCode
from appliance.protocol.node_endpoint import node_endpoints_field
from appliance.protocol.produce import ProducePartition, ProduceResult, encode_produce_response
from appliance.requests.leader_hints import with_hints
from appliance.requests.log_handlers.refused_batches import RefusedBatches
from appliance.requests.session import Request
from appliance.requests.topic_routes import TopicRoutes

_EXPLAINED: Final = frozenset(
    {
        int(ErrorCode.INVALID_RECORD),
        int(ErrorCode.INVALID_TIMESTAMP),
        int(ErrorCode.CORRUPT_MESSAGE),
        int(ErrorCode.MESSAGE_TOO_LARGE),
        int(ErrorCode.INVALID_REQUIRED_ACKS),
    }
)
"""Errors that a response explains with a sentence."""


def failed_result(wanted: ProducePartition, error: int, log_start: int) -> ProduceResult:
    """Return the result of a batch that was not appended, or of which it is not known."""
    message = ErrorCode(error).message if error in _EXPLAINED else None
    return ProduceResult(
        wanted.topic, wanted.partition, error, log_start_offset=log_start, error_message=message
    )


def failure_of_unanswered(results: Iterable[ProduceResult | None]) -> str:
    """Return why the connection of a request with acks=0 is closed, or an empty text if no batch failed."""
    failed = next((result.error_code for result in results if result and result.error_code), 0)
    return f"a produce request with acks=0 failed with {ErrorCode(failed).name}" if failed else ""


def hinted_pieces(pending: Request, results: Sequence[ProduceResult], routes: TopicRoutes) -> list[bytes]:
    """Return the response of a request of which a partition has moved, with the present leaders (KIP-951).

    It has two pieces, so that the throttle time is the end of the first (`protocol.throttle_time`).
    """
    hinted, endpoints = with_hints(routes, results, pending.session)
    frame = encode_produce_response(pending.version, pending.correlation_id, hinted, node_endpoints=endpoints)
    tags = len(node_endpoints_field(endpoints))
    return [frame[:-tags], frame[-tags:]]


def note_refused(pending: Request, wanted: ProducePartition, *, code: int, arriving: bool) -> None:
    """Remember a refused batch, because what the client has sent behind it must be refused with the same error."""
    session, block = pending.session, pending.block
    if block is None:
        return
    refused = session.refused_batches
    if refused is None:
        refused = session.refused_batches = RefusedBatches()
    refused.note(wanted, block.view, code=code, now_ns=session.last_active_ns, arriving=arriving)
