"""Records of an internal log that a state machine takes in together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.control.coordinator.runtime.effects import Record
from appliance.log.groups import Group


class RecordBlock(NamedTuple):
    """Records that have a producer in common. `producer_id` is -1 where they were written without one."""

    group: Group
    producer_id: int
    producer_epoch: int
    is_transactional: bool

    def each(self) -> Iterator[tuple[int, Record]]:
        """Yield (offset, record) in the log's order. A record without a key has an empty one.

        Raises:
            InvalidRecords: a record does not add up.
        """
        group = self.group
        data, bases = group.data, group.bases()
        for first, columns in group.columns():
            offsets = bases[first : first + len(columns.keys_at)] + columns.offset_deltas
            for offset, key, key_bytes, value, value_bytes in zip(
                offsets.tolist(),
                columns.keys_at.tolist(),
                columns.key_lengths.tolist(),
                columns.values_at.tolist(),
                columns.value_lengths.tolist(),
                strict=True,
            ):
                content = data[value : value + value_bytes] if value_bytes >= 0 else None
                yield offset, Record(data[key : key + max(key_bytes, 0)], content)
