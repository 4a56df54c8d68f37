"""Which offsets have had their time.

| the group | an offset goes after offsets.retention.minutes |
|---|---|
| in no use of a protocol (simple consumers) | from its own commit on |
| of a protocol, empty | from when it became empty on, or from a later commit |
| with members | from its commit on, if no member is subscribed to its topic |

An offset that was committed with a retention of its own (OffsetCommit 2-4) goes at that time instead, under the same
conditions. One that an open transaction is about to overwrite stays. Source: `OffsetExpirationConditionImpl.java`,
`OffsetMetadataManager.java`, KIP-211, KIP-496.
"""

from __future__ import annotations

from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.runtime.effects import Record
from appliance.protocol.records.offset_records import NO_EXPIRY, parse_value


def expired(
    book: OffsetBook,
    group: str,
    *,
    now_ms: int,
    retention_ms: int,
    empty_since_ms: int | None,
    subscribed: frozenset[str],
) -> list[Record]:
    """The tombstones of what is to go of a group's offsets.

    Args:
        empty_since_ms: when the group lost its last member; None counts from each commit.
        subscribed: topics whose offsets stay.
    """

    def had_its_time(topic: str, partition: int, value: bytes) -> bool:
        if topic in subscribed or book.pending.has(group, topic, partition):
            return False
        committed = parse_value(value)
        if committed.expire_ms != NO_EXPIRY:
            return committed.expire_ms <= now_ms
        since_ms = max(committed.commit_ms, empty_since_ms or 0)
        return now_ms - since_ms >= retention_ms

    return book.tombstones(group, had_its_time)
