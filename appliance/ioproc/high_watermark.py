"""The high watermark: the least log end among the in-sync replicas. Pure."""

from __future__ import annotations

from appliance.channels.partition_table import HIGH_WATERMARK, SLOT_LOG_END, PartitionTable


def high_watermark(table: PartitionTable, *, row: int, isr: tuple[int, ...], leader_log_end: int) -> int:
    """The high watermark of `row`, never below the one published.

    A follower's word may be stale but never ahead of its bytes, so the minimum is safe; and since a new leader
    was in sync, the minimum only seems to fall while its followers have not reported yet (KIP-101).
    """
    cells = table.cells
    published = cells[table.at(row) + HIGH_WATERMARK]
    least = min((cells[table.slot_at(row, slot) + SLOT_LOG_END] for slot in isr), default=leader_log_end)
    return max(published, min(least, leader_log_end))
