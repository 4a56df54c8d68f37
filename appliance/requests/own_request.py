"""A request of this process to a coordinator, on behalf of a client's: its frame lies in our own pool.

It has no place in the session's queue, because nobody but this process waits for its answer. Its session tells the
coordinator when nobody does any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.framing import SIZE_BYTES
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import encode_request
from appliance.requests.session import Request, Session

HandOver = Callable[[Request, memoryview, int, int], None]
"""Takes the request, its block's view, and where in it the body begins and the frame ends; the frame begins at 0."""


def hand_over_own(
    pool: BufferPool, session: Session, api: ApiKey, version: int, request: Any, *, hand_over: HandOver
) -> bool:
    """Frame a request and hand it over; False where the pool has no room for it now."""
    frame = encode_request(api, version, request, 0)[SIZE_BYTES:]
    block = pool.take(len(frame))
    if block is None:
        return False
    view = block.view
    view[: len(frame)] = frame
    pending = Request(session, block, int(api), version, 0)
    try:
        header = parse_request_header(view, 0, len(frame))
        hand_over(pending, view, header.body_position, len(frame))
    finally:
        pending.give_block(pool)
    return True
