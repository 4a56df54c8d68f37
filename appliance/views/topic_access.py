"""What a view needs of a client: a reader and a writer of topics.

Two clients exist: librdkafka (`cli/topic_client.py`), and the console's link (`console/topic_link.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from appliance.errors import ApplianceError
from appliance.protocol.records.record import Record

Place = tuple[str, int]
"""Topic and partition."""


class NotShown(ApplianceError):
    """There is nothing to show: a topic is not there, or its records cannot be read."""


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """A record and where it was read. Its timestamp is the one of the log."""

    topic: str
    partition: int
    offset: int
    record: Record

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


class TopicReader(Protocol):
    """Reads topics with the rights of one client. Every method raises an ApplianceError if the broker refuses."""

    def topics(self) -> Mapping[str, int]:
        """Return the topics that the client may see: name → number of partitions."""

    def topic_ids(self) -> Mapping[str, UUID]:
        """Return the ids of these topics."""

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the log start of each partition; those without a leader are left out."""

    def ends(self, places: Iterable[Place], *, read_committed: bool) -> dict[Place, int]:
        """Return the high watermark, or the last stable offset, of each partition; as `starts`."""

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        """Return the offset of the first record at or after a time; None if there is none."""

    def records(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Iterator[PlacedRecord]:
        """Yield the committed records of each partition from its start to its end, partitions in any order."""

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics; one that is not there, or may not be described, is left out."""


class TopicWriter(Protocol):
    """Writes to topics with the rights of one client."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        *,
        partition: int = -1,
    ) -> None:
        """Send a record; to the partition of its key for -1. `finish` says whether it is there."""

    def finish(self) -> None:
        """Wait until all records that were sent are acknowledged by all in-sync replicas.

        Raises:
            ApplianceError: one was refused, or no answer came.
        """

    def delete_before(self, offsets: Mapping[Place, int]) -> None:
        """Delete what lies before these offsets."""
