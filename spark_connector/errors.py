"""What can keep a reader from its records. Nothing here ever means "fewer rows".

ApplianceError
└── ConnectorError
    ├── NotALogDirectory     a path that holds no partitions of the appliance's or of Apache Kafka's
    ├── UnknownTopic         no such topic or partition in the directories given
    ├── NotReadable          how far it may be read is not known: never published, or torn by a power cut
    │   └── PartitionMoved       its directory is gone since it was looked at
    ├── TooManyReaders       as many readers as a partition takes have leases on it
    ├── ShortRead            the end of a range was not reached, after all attempts
    ├── CorruptSegment       a batch does not hold, at a file and a position
    │   └── UnsupportedFormat    a message of format v0 or v1
    └── DataLost             what was asked for is not there any more: below the log start, a topic that was made
        │                    anew, a log that was cut
        └── LeaseRevoked     the broker took the reader's lease back at its cap
"""

from __future__ import annotations

from appliance.errors import ApplianceError


class ConnectorError(ApplianceError):
    """Root of what the connector raises on purpose."""


class NotALogDirectory(ConnectorError):
    """The path holds no partitions."""


class UnknownTopic(ConnectorError):
    """The topic, or its partition, is in none of the directories."""


class NotReadable(ConnectorError):
    """How far a partition may be read is not known."""


class PartitionMoved(NotReadable):
    """The directory of a partition that was looked at is gone: it went to another slot, or was deleted. Look again."""


class TooManyReaders(ConnectorError):
    """A partition has as many leases of readers as it takes; a query is rejected when it is planned."""


class ShortRead(ConnectorError):
    """A range could not be read to its end."""


class DataLost(ConnectorError):
    """Records that were asked for do not exist any more, or are not the same ones any more."""


class LeaseRevoked(DataLost):
    """The broker has revoked the lease: what it held is removed."""


class CorruptSegment(ConnectorError):
    """Bytes at `position` of the file `path` are no sound batch.

    Args:
        reason: what does not hold.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path = path
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} at position {self.position}: {self.reason}"


class UnsupportedFormat(CorruptSegment):
    """A message of format v0 or v1, which Apache Kafka wrote before 0.11."""
