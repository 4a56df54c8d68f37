"""DESCRIBE_PRODUCER on a partition's owner: the producer that comes next by its id.

One at a time, as a descriptor holds no more. Who asks for all of them sees each that is there all the while; one that
comes or goes meanwhile, or may not. O(log producers), and once O(producers) after one came or went.
"""

from __future__ import annotations

from appliance.channels.request_channel import ITEM, LOWEST_PRODUCER_ID, REQUEST_ID, ROW, Op
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition

_OP = int(Op.DESCRIBE_PRODUCER)
_WORD = 0xFFFFFFFF


def describe_producer(partition: Partition, message: tuple[int, ...]) -> Answer:
    """Fields as in `channels.request_channel`.

    Source: `Partition.activeProducerState`.
    """
    entry = partition.log.producers.at_or_after(message[LOWEST_PRODUCER_ID])
    head = (_OP, 0, 0, message[REQUEST_ID], message[ITEM], message[ROW])
    if entry is None:
        return (*head, -1, -1, -1, 0, 0, 0, 0, -1)
    return (
        *head,
        entry.producer_id,
        entry.last_timestamp_ms,
        entry.transaction_first_offset,
        entry.last_sequence & _WORD,
        entry.coordinator_epoch & _WORD,
        0,
        entry.epoch,
        -1,
    )
