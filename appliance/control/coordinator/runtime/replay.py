"""The batches of an internal log, for the state machine that is loaded from them.

Batches are taken together as long as they are of one producer and one transaction state, because a machine needs the
producer only where a transaction is open:

    batch      a   a   m   b   b   b        a, b: records of one producer each; m: a marker that ends a transaction
    given as   ├─block─┤   ├──block──┤
               marker ─┘

Control batches other than end markers, and control batches that compaction has emptied, mean nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from appliance.control.coordinator.runtime.record_block import RecordBlock
from appliance.control.coordinator.runtime.state_machine import BlockReplay, StateMachine
from appliance.errors import CorruptFile
from appliance.log.chunks import Batch, Chunk
from appliance.log.groups import gather
from appliance.protocol.records.batch import (
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    TRANSACTIONAL,
)
from appliance.protocol.records.control import decode_marker
from appliance.protocol.records.errors import BatchFault

_NO_PRODUCER: Final = -1


def replay_chunk(
    chunk: Chunk,
    machine: StateMachine,
    block_replay: BlockReplay | None,
    *,
    path: Path,
    from_offset: int,
    decompressed_bytes_max: int,
) -> None:
    """Give the machine every record and end marker of the batches that end at `from_offset` or after it.

    Raises:
        CorruptFile, MalformedFrame: a batch does not decompress, its records do not add up, or the machine cannot read
            one of them.
    """
    batches = [batch for batch in chunk.batches if batch.last_offset >= from_offset]
    for stretch in _stretches(batches):
        if stretch[0].is_control:
            _replay_control(chunk.data, stretch[0], machine, path)
            continue
        header = stretch[0].header
        for group in gather(chunk.data, stretch, path=path, decompressed_bytes_max=decompressed_bytes_max):
            if not len(group.starts):
                continue
            block = RecordBlock(
                group,
                header[H_PRODUCER_ID],
                header[H_PRODUCER_EPOCH],
                bool(header[H_ATTRIBUTES] & TRANSACTIONAL),
            )
            try:
                if block_replay is not None:
                    block_replay(block)
                    continue
                for offset, record in block.each():
                    machine.replay(offset, block.producer_id, block.producer_epoch, record)
            except BatchFault as fault:
                first, last = stretch[0].header[H_BASE_OFFSET], stretch[-1].last_offset
                raise CorruptFile(f"{path}: the records of offsets {first} to {last}: {fault}") from fault


def _stretches(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """Cut the batches where the producer or the transaction state changes; a control batch stands alone."""
    first, kind = 0, None
    for at, batch in enumerate(batches):
        header = batch.header
        this = (header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH], header[H_ATTRIBUTES] & TRANSACTIONAL)
        if at and (batch.is_control or batches[at - 1].is_control or this != kind):
            yield batches[first:at]
            first = at
        kind = this
    if batches:
        yield batches[first:]


def _replay_control(data: bytes, batch: Batch, machine: StateMachine, path: Path) -> None:
    header = batch.header
    if header[H_PRODUCER_ID] <= _NO_PRODUCER:
        return
    try:
        marker = decode_marker(data, batch.position)
    except BatchFault as fault:
        raise CorruptFile(f"{path}: the control batch of offset {header[H_BASE_OFFSET]}: {fault}") from fault
    if marker is not None:
        machine.replay_marker(header[H_BASE_OFFSET], header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH], marker)
