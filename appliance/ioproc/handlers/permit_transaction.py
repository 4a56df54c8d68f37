"""PERMIT_TRANSACTION on a partition's owner: the transaction coordinator says that a producer may open a transaction.

The request's fields: `producer_id`, and `position` its epoch. It only changes memory, so it does not fail where the
partition is served. The answer tells the coordinator that the producer's next batch will be accepted.

A permit is refused, as NOT_LEADER_OR_FOLLOWER, once the process table names a later life of the coordinator that sent
it (`request_rings`): the successor may have ended that transaction by a marker on the ring of another coordinator.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.request_channel import (
    ITEM,
    PERMITTED_EPOCH,
    PERMITTED_PRODUCER_ID,
    REQUEST_ID,
    ROW,
    Op,
)
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition

_OP: Final = int(Op.PERMIT_TRANSACTION)


def permit_transaction(partition: Partition, message: tuple[int, ...]) -> Answer:
    """Fields of the answer as in `channels.request_channel`.

    Source: what `ReplicaManager.maybeSendPartitionsToTransactionCoordinator` asks for, told before it is asked.
    """
    partition.log.permit_transaction(message[PERMITTED_PRODUCER_ID], message[PERMITTED_EPOCH])
    head = (_OP, 0, 0, message[REQUEST_ID], message[ITEM], message[ROW])
    return (*head, -1, -1, -1, 0, 0, 0, partition.leader_epoch, -1)
