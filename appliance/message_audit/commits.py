"""Committed offsets of groups, read from the records of one partition of `__consumer_offsets`.

A transaction's commits count when its marker comes, and not at all if it is aborted. Until then they are open. The
position to read from after a death is the first record of the oldest open transaction. What is read twice has no
effect, because the offsets of a group's commits in this log only rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from appliance.errors import ApplianceError
from appliance.protocol.records.batch import (
    CONTROL,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_PRODUCER_ID,
    TRANSACTIONAL,
)
from appliance.protocol.records.offset_records import OFFSET_KEYS, parse_key, parse_value
from appliance.protocol.records.record import Record

OPEN_MAX: Final = 10_000
"""Commits of open transactions in a partition. Above it, the oldest transaction's are dropped."""
_COMMIT_MARKER: Final = b"\0\0\0\1"


class Commit(NamedTuple):
    """`at`: the offset of the record, or of the marker, in `__consumer_offsets`."""

    group: str
    topic: str
    partition: int
    offset: int
    at: int
    at_ms: int


class Commits:
    """Reads one partition of `__consumer_offsets`."""

    __slots__ = ("_open", "dropped", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.dropped = 0
        self._open: dict[int, list[Commit]] = {}

    @property
    def resume_at(self) -> int:
        """The offset from which everything that is open is read again."""
        return min((commits[0].at for commits in self._open.values()), default=self.position)

    def take(self, header: tuple[int, ...], records: Iterable[Record]) -> Iterator[Commit]:
        """Take the next batch; return the commits that count now."""
        self.position = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
        attributes, producer_id = header[H_ATTRIBUTES], header[H_PRODUCER_ID]
        if attributes & CONTROL:
            for record in records:
                ended = self._open.pop(producer_id, [])
                if record.key == _COMMIT_MARKER:
                    yield from (commit._replace(at=record.offset) for commit in ended)
            return
        found = [commit for record in records if (commit := _commit(record)) is not None]
        if not attributes & TRANSACTIONAL:
            yield from found
        elif found:
            self._open.setdefault(producer_id, []).extend(found)
            if sum(map(len, self._open.values())) > OPEN_MAX:
                self.dropped += len(self._open.pop(next(iter(self._open))))


def _commit(record: Record) -> Commit | None:
    if record.key is None or record.value is None or record.key[:2] not in OFFSET_KEYS:
        return None
    try:
        key, value = parse_key(record.key), parse_value(record.value)
    except ApplianceError:
        return None
    return Commit(key.group, key.topic, key.partition, value.offset, record.offset, value.commit_ms)
