"""The batches of an internal log, for the state machine that is loaded from them.

Batches are taken together as long as they are of one producer and one transaction state, because a machine needs the
producer only where a transaction is open:

    batch      a   a   m   b   b   b        a, b: records of one producer each; m: a marker that ends a transaction
    given as   ├─block─┤   ├──block──┤
               marker ─┘

Control batches other than end markers, and control batches that compaction has emptied, mean nothing here.

To a machine that takes blocks a chunk is given otherwise, since an application that commits offsets in transactions
leaves a marker after every few records. The end of most transactions stands in the same chunk. So committed records are
given as if they had no producer, aborted ones not at all, and few blocks are of a transaction, which is open at the
chunk's end:

    batch      m1  a   a   2   m2  2'  b   3   m3  2'          1, 2, 3: records of transactions; m2: commits, m3: aborts
    given as   m1 ├────────┤       ├┤  ├─┤         ├┤          2' is of producer 2, and open at the end

Its first marker of each producer goes first, because it may end what an earlier chunk has left open. All of that stands
earlier in the log than this chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

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
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
)
from appliance.protocol.records.control import EndTransactionMarker, decode_marker
from appliance.protocol.records.errors import BatchFault


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
    is_open: frozenset[int] = frozenset()
    if block_replay is not None and any(batch.header[H_ATTRIBUTES] & TRANSACTIONAL for batch in batches):
        batches, is_open = _decided(chunk.data, batches, machine, path)
    for stretch in _stretches(batches, is_open if block_replay is not None else None):
        if stretch[0].is_control:
            _replay_control(chunk.data, stretch[0], machine, path)
            continue
        header = stretch[0].header
        is_pending = block_replay is None or header[H_BASE_OFFSET] in is_open
        for group in gather(chunk.data, stretch, path=path, decompressed_bytes_max=decompressed_bytes_max):
            if not len(group.starts):
                continue
            block = RecordBlock(
                group,
                header[H_PRODUCER_ID] if is_pending else NO_PRODUCER_ID,
                header[H_PRODUCER_EPOCH] if is_pending else NO_PRODUCER_EPOCH,
                is_pending and bool(header[H_ATTRIBUTES] & TRANSACTIONAL),
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


def _decided(
    data: bytes, batches: Sequence[Batch], machine: StateMachine, path: Path
) -> tuple[list[Batch], frozenset[int]]:
    """Without markers, and without what these abort; the base offsets of batches whose transaction is open at the end.

    The machine gets the first marker of each producer.
    """
    kept: list[Batch | None] = []
    under_way: dict[int, list[int]] = {}
    ended: set[int] = set()
    for batch in batches:
        producer_id = batch.header[H_PRODUCER_ID]
        if batch.is_control:
            marker = _marker(data, batch, path)
            if marker is None:
                continue
            if producer_id not in ended:
                ended.add(producer_id)
                machine.replay_marker(
                    batch.header[H_BASE_OFFSET], producer_id, batch.header[H_PRODUCER_EPOCH], marker
                )
            places = under_way.pop(producer_id, ())
            if not marker.committed:
                for place in places:
                    kept[place] = None
            continue
        if batch.header[H_ATTRIBUTES] & TRANSACTIONAL:
            under_way.setdefault(producer_id, []).append(len(kept))
        kept.append(batch)
    is_open = [kept[place] for places in under_way.values() for place in places]
    return (
        [batch for batch in kept if batch is not None],
        frozenset(batch.header[H_BASE_OFFSET] for batch in is_open if batch is not None),
    )


def _stretches(batches: Sequence[Batch], is_open: frozenset[int] | None) -> Iterator[Sequence[Batch]]:
    """Cut the batches where the producer or the transaction state changes; a control batch stands alone.

    `is_open`: base offsets of those whose producer matters; None: that of every batch does.
    """
    first, kind = 0, None
    for at, batch in enumerate(batches):
        header = batch.header
        this = None
        if is_open is None or header[H_BASE_OFFSET] in is_open:
            this = (header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH], header[H_ATTRIBUTES] & TRANSACTIONAL)
        if at and (batch.is_control or batches[at - 1].is_control or this != kind):
            yield batches[first:at]
            first = at
        kind = this
    if batches:
        yield batches[first:]


def _replay_control(data: bytes, batch: Batch, machine: StateMachine, path: Path) -> None:
    header = batch.header
    marker = _marker(data, batch, path)
    if marker is not None:
        machine.replay_marker(header[H_BASE_OFFSET], header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH], marker)


def _marker(data: bytes, batch: Batch, path: Path) -> EndTransactionMarker | None:
    header = batch.header
    if header[H_PRODUCER_ID] <= NO_PRODUCER_ID:
        return None
    try:
        return decode_marker(data, batch.position)
    except BatchFault as fault:
        raise CorruptFile(f"{path}: the control batch of offset {header[H_BASE_OFFSET]}: {fault}") from fault
