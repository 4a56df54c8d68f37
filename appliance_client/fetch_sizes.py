"""How much is fetched at a time.

`poll` gets what the options say. Tables get more of a partition at a time, because a table of 1 MB takes as many calls
as one of 4 MB. An answer gets no larger than its memory can be used again (`spare_memory`).
"""

from __future__ import annotations

from typing import Final

from appliance_client.options import ConsumerOptions

COLUMNS_PARTITION_BYTES: Final = 4_000_000
COLUMNS_BYTES: Final = 32_000_000
"""Of all partitions together, unless what the option says for each is more. Twice as much may wait to be decoded."""
COLUMNS_ANSWER_BYTES: Final = 4_000_000


def partition_bytes(options: ConsumerOptions, partitions: int, *, for_columns: bool) -> int:
    """The most that is fetched of each of so many partitions."""
    most = options.max_partition_fetch_bytes
    if not for_columns or options.has_fetch_size or not partitions:
        return most
    return max(most, min(COLUMNS_PARTITION_BYTES, COLUMNS_BYTES // partitions))


def answer_bytes(options: ConsumerOptions, *, for_columns: bool) -> int:
    """The most that an answer may hold, of all its partitions."""
    if not for_columns:
        return options.fetch_max_bytes
    return min(options.fetch_max_bytes, max(COLUMNS_ANSWER_BYTES, options.max_partition_fetch_bytes))
