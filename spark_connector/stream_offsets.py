"""How far a stream has come: what Spark keeps in its write-ahead log, as JSON.

    {"version": 1, "lease": "9f…", "topics": {"orders": {"id": "5c0e…", "partitions": {"0": [4711, 3]}}}}

For every partition the offset that comes next, and the leader epoch of the record before it (-1: not known). With the
topic's id this tells a log that was cut or a topic that was made anew from one that has grown. The lease's name goes
along, so that a query that starts again goes on with the lease it had.

Spark takes two positions for the same only if their JSON is the same, so topics and partitions stand in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_connector.errors import ConnectorError

VERSION: Final = 1
NO_EPOCH: Final = -1


class UnknownPosition(ConnectorError):
    """A checkpoint holds a position that another version of this source, or another source, has written."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The offset that comes next, and the leader epoch of the record before it."""

    offset: int
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """A position in all partitions of a stream. `ids` holds the topics' ids as text, empty where unknown."""

    lease: str
    ids: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[tuple[str, int], Mark] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(sorted(self.marks))

    def encode(self) -> dict[str, Any]:
        """As Spark keeps it."""
        topics: dict[str, Any] = {}
        for topic, partition in self:
            mark = self.marks[topic, partition]
            entry = topics.setdefault(topic, {"id": self.ids.get(topic, ""), "partitions": {}})
            entry["partitions"][str(partition)] = [mark.offset, mark.epoch]
        return {"version": VERSION, "lease": self.lease, "topics": topics}


def decode_offsets(found: Mapping[str, Any]) -> StreamOffsets:
    """What `encode` made.

    Raises:
        UnknownPosition: it is something else.
    """
    try:
        if found["version"] != VERSION:
            raise UnknownPosition(
                f"the checkpoint holds a position of version {found['version']}, not {VERSION}"
            )
        marks = {
            (topic, int(partition)): Mark(int(offset), int(epoch))
            for topic, entry in found["topics"].items()
            for partition, (offset, epoch) in entry["partitions"].items()
        }
        ids = {topic: str(entry["id"]) for topic, entry in found["topics"].items()}
        return StreamOffsets(str(found["lease"]), ids, marks)
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise UnknownPosition(f"the checkpoint holds no position of this source: {found!r}") from fault
