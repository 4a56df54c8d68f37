"""Which transactions of a stretch of a log were aborted: what a read_committed client must know beside the records.

Read off the disk, from the `.txnindex` files of the partition, like the records themselves; the owner has only said
that there are some. Kafka answers the same: entries that overlap the fetched range, by the segments from the one
fetched from up to the first entry whose last stable offset is not below the bound (`UnifiedLog.java`; KIP-98).
"""

from __future__ import annotations

import os
from pathlib import Path

from appliance.log.faults import storage_faults
from appliance.log.file_names import TRANSACTION_INDEX, parse_segment_file_name, segment_file_name
from appliance.log.transaction_index import read_transactions
from appliance.protocol.fetch_response import AbortedTransaction


def aborted_in(
    directory: Path, segment_base_offset: int, *, offset: int, upper_bound: int
) -> list[AbortedTransaction]:
    """Aborted transactions that overlap [`offset`, `upper_bound`), oldest first.

    Raises:
        StorageFault: an index cannot be read.
    """
    with storage_faults(directory):
        parsed = [parse_segment_file_name(name) for name in os.listdir(directory)]
    bases = sorted(
        each[0]
        for each in parsed
        if each is not None and each[1] == TRANSACTION_INDEX and each[0] >= segment_base_offset
    )
    found: list[AbortedTransaction] = []
    for base in bases:
        for entry in read_transactions(directory / segment_file_name(base, TRANSACTION_INDEX)):
            if entry.last_offset >= offset and entry.first_offset < upper_bound:
                found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= upper_bound:
                return found
    return found
