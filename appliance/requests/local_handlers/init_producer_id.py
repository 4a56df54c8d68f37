"""InitProducerId 0-5 for idempotent producers: a new id, epoch 0, every time.

A request with a transactional id goes to the coordinator of that id (`route` of the row in `api_table`).

Left out: version 6, which Apache Kafka 4.3 does not serve either. Therefore there is no two-phase commit (KIP-939).
"""

from __future__ import annotations

from appliance.channels.control_channel import AllocateProducerIds, ProducerIdBlock
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps

ALLOCATE_TIMEOUT_MS = 5_000
NO_PRODUCER = -1
"""In place of an id and of an epoch; one without the other is refused (KIP-360)."""


def init_producer_id(request: InitProducerIdRequest, view: LocalView) -> Steps[InitProducerIdResponse]:
    """From the block at hand, else from the controller's next."""
    has_half = (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER)
    if has_half:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    producer_id = view.producer_ids.take()
    if producer_id is None:
        answer = yield Ask(AllocateProducerIds(), ALLOCATE_TIMEOUT_MS)
        if not isinstance(answer, ProducerIdBlock) or not answer.count:
            return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        producer_id = answer.first
        # Others may have asked meanwhile: what is left of an older block is not worth keeping in order.
        view.producer_ids.refill(producer_id + 1, answer.count - 1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
