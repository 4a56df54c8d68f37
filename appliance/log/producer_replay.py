"""Reading batches into what is known of producers: at an opening, and after a log was cut.

A snapshot says how it was at some offset; the batches behind that are replayed. Only headers are read, and markers.
Source: `LogLoader.recoverSegment`, `UnifiedLog.rebuildProducerState`.
"""

from __future__ import annotations

from collections.abc import Collection

from appliance.errors import CorruptFile
from appliance.log.producer_state import Producers
from appliance.log.segment import Segment
from appliance.log.segment_file import Header
from appliance.protocol.records.batch import (
    CONTROL,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_SEQUENCE,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    H_MAX_TIMESTAMP,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    LOG_OVERHEAD,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    TRANSACTIONAL,
)
from appliance.protocol.records.control import decode_marker
from appliance.protocol.records.errors import BatchFault


def replay(
    producers: Producers, segments: list[Segment], start: int, *, indexing: Collection[int] = ()
) -> None:
    """Takes the batches from offset `start` on into the state of producers.

    Aborted transactions are added to the transaction index of the segments whose base offsets are in `indexing`.

    Raises:
        StorageFault, CorruptFile: a segment cannot be read.
    """
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and segments[number + 1].base_offset <= start:
            continue
        file = segment.file
        position = segment.offset_index.lookup(start)
        for at, header in file.headers(position, end=file.size_bytes, read_bytes=1 << 16):
            # Of the batch that a log begins inside of, the rest counts, and may be of an open transaction.
            if header[H_PRODUCER_ID] < 0 or header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] < start:
                continue
            if header[H_ATTRIBUTES] & CONTROL:
                _replay_control(producers, segment, at, header, index=segment.base_offset in indexing)
            else:
                sequence = header[H_BASE_SEQUENCE]
                producers.add_batch(
                    header[H_PRODUCER_ID],
                    header[H_PRODUCER_EPOCH],
                    last_sequence=(sequence + header[H_LAST_OFFSET_DELTA]) & SEQUENCE_MAX
                    if sequence >= 0
                    else NO_SEQUENCE,
                    last_offset=header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA],
                    offset_delta=header[H_LAST_OFFSET_DELTA],
                    timestamp_ms=header[H_MAX_TIMESTAMP],
                    transactional=bool(header[H_ATTRIBUTES] & TRANSACTIONAL),
                )
        if number + 1 < len(segments):
            segment.release()


def _replay_control(
    producers: Producers, segment: Segment, position: int, header: Header, *, index: bool
) -> None:
    try:
        marker = decode_marker(segment.file.read(position, header[H_BATCH_LENGTH] + LOG_OVERHEAD))
    except BatchFault as fault:
        raise CorruptFile(f"{segment.file.path} at {position}: {fault}") from fault
    if marker is None:
        return
    completed = producers.add_marker(
        header[H_PRODUCER_ID],
        header[H_PRODUCER_EPOCH],
        marker=marker,
        offset=header[H_BASE_OFFSET],
        timestamp_ms=header[H_MAX_TIMESTAMP],
    )
    if completed is not None and not completed.committed and index:
        segment.transaction_index.append(producers.aborted(completed))
