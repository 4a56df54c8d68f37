"""Which records of a refused batch were at fault: `record_errors` of a Produce response (KIP-467), from v8 on.

The worker's answer has room for a reason, not for a list. The batch still lies in this process's pool, so the network
process walks it once more and finds the records by that reason. Only refused batches cost this.

Left out on purpose: a batch of more than `RECORDS_MAX` records or `WALKED_BYTES_MAX` decompressed bytes, because the
network process serves nobody else meanwhile (some milliseconds). The client then learns the error of the batch alone.

Source: Apache Kafka's `LogValidator.java`, `RecordValidationException.java`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.channels.request_channel import EARLIEST_MS, LATEST_MS, REJECT_REASON, RejectReason
from appliance.protocol.produce import ProducePartition, RecordError
from appliance.protocol.records.batch import NO_TIMESTAMP, read_header
from appliance.protocol.records.errors import BatchFault
from appliance.protocol.records.record import decode_records
from appliance.requests.worker_lines import Answer

WALKED_BYTES_MAX: Final = 2 << 20
RECORDS_MAX: Final = 4096


def record_errors(block: memoryview, wanted: ProducePartition, answer: Answer) -> tuple[RecordError, ...]:
    """Return the records that made the worker refuse a batch, in the order of the batch; () where they are not known.

    Args:
        block: the bytes that hold the produce request.
        wanted: where in them the batch lies.
        answer: the worker's refusal (see `channels.request_channel`).
    """
    batch = block[wanted.records_position : wanted.records_position + wanted.records_length]
    try:
        if read_header(batch).records_count > RECORDS_MAX:
            return ()
        return tuple(_at_fault(batch, wanted, answer))
    except BatchFault:
        return ()


def _at_fault(batch: memoryview, wanted: ProducePartition, answer: Answer) -> Iterator[RecordError]:
    records = enumerate(decode_records(batch, decompressed_bytes_max=WALKED_BYTES_MAX))
    if answer[REJECT_REASON] == RejectReason.MISSING_KEY:
        for index, record in records:
            if record.key is None:
                yield RecordError(
                    index, f"{wanted.topic}-{wanted.partition} is compacted: this record has no key"
                )
        return
    earliest_ms, latest_ms = answer[EARLIEST_MS], answer[LATEST_MS]
    for index, record in records:
        if record.timestamp_ms != NO_TIMESTAMP and not earliest_ms <= record.timestamp_ms <= latest_ms:
            yield RecordError(
                index, f"timestamp {record.timestamp_ms} is outside of {earliest_ms} to {latest_ms}"
            )
