"""What every judged client can be asked to do, in one vocabulary, and how its refusals are told.

Each library sits behind an adapter that only translates: no retry, no repair. What a library cannot do stands
in its `left_out`, scenario by scenario, with the reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

Header = tuple[str, bytes | None]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

# Kafka's error codes that scenarios expect.
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
INVALID_TOPIC: Final = 17
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_CONFIG: Final = 40


class RefusedError(Exception):
    """The library reported an error. `code` is Kafka's, or -1 where the library has only its own words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send. `partition` None leaves the choice to the client, `timestamp_ms` None the time."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = 0


@dataclass(frozen=True, slots=True)
class Received:
    """A record as a client handed it out."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """Where an acknowledged record lies, as its producer was told."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """What DescribeCluster (or Metadata) says."""

    cluster_id: str
    nodes: Mapping[int, str]
    controller: int


class Client(ABC):
    """One library, connected to one address. Adapters keep no broker state between calls unless they must."""

    name: ClassVar[str]
    left_out: ClassVar[Mapping[str, str]] = {}
    sets_timestamps: ClassVar[bool] = True
    groups_headers: ClassVar[bool] = False  # hands headers out as name → values, so that their order is lost

    def __init__(self, address: str) -> None:
        self.address = address

    def close(self) -> None:  # noqa: B027 (most adapters hold nothing)
        """Ends what the adapter holds."""

    @abstractmethod
    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Position]:
        """Sends all and returns when all are acknowledged, with their positions where the library tells them.

        Raises:
            RefusedError: the first record that the library could not deliver.
        """

    @abstractmethod
    def consume(
        self,
        topic: str,
        partition: int,
        *,
        start: int,
        count: int,
        reset: str = "none",
        max_wait_ms: int = 500,
        timeout_s: float = 60.0,
    ) -> list[Received]:
        """Reads `count` records of one partition from offset `start`, without a group.

        `reset` is the library's policy for an offset out of range: none, earliest or latest.

        Raises:
            RefusedError: what the library reported.
            TimeoutError: not `count` records in time.
        """

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Offset of the first record at or after the time, None when there is none."""
        raise NotImplementedError

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        """Earliest and latest offset."""
        raise NotImplementedError

    def offset_of_max_timestamp(self, topic: str, partition: int) -> int:
        """Offset of the record with the largest timestamp."""
        raise NotImplementedError

    def create_topic(self, topic: str, partitions: int, *, settings: Mapping[str, str] | None = None) -> None:
        """Creates a topic with REPLICAS replicas."""
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic."""
        raise NotImplementedError

    def create_partitions(self, topic: str, total: int) -> None:
        """Raises the number of partitions to `total`."""
        raise NotImplementedError

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        """All settings of a topic, as DescribeConfigs tells them."""
        raise NotImplementedError

    def cluster(self) -> Cluster:
        """The cluster."""
        raise NotImplementedError

    def topics(self) -> dict[str, int]:
        """Every topic with its number of partitions; asking creates none."""
        raise NotImplementedError
