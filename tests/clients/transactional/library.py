"""What every library with transactions can be asked to do, in one vocabulary.

An adapter only translates: no retry, no repair. What a library cannot do stands in its `left_out`, scenario by
scenario, with the reason. Values are bytes, because what a record carries beside its value is the other scenarios'
subject.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

# Kafka's error codes that scenarios expect.
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_TRANSACTION_TIMEOUT: Final = 50
PRODUCER_FENCED: Final = 90

LIBRARY_FENCED: Final = -144
"""librdkafka's own code of a fenced producer."""

FENCED: Final = (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, LIBRARY_FENCED)
"""How a broker says it depends on the request, and on its version."""


class TransactionalProducer(ABC):
    """One producer with a transactional id. Every call returns when the broker has answered.

    Raises:
        RefusedError: each of them, with Kafka's code where the library tells it.
    """

    @abstractmethod
    def init(self) -> None:
        """InitProducerId: ends what an earlier producer of this id left, and fences that producer."""

    @abstractmethod
    def begin(self) -> None:
        """Asks the broker nothing in most libraries."""

    @abstractmethod
    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Sends all, and returns when all are acknowledged."""

    @abstractmethod
    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commits a simple group's offsets, by (topic, partition), within the transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commits the transaction."""

    @abstractmethod
    def abort(self) -> None:
        """Aborts the transaction."""

    @abstractmethod
    def close(self) -> None:
        """Leaves an open transaction open, as a producer that crashed."""


class TransactionalLibrary(ABC):
    """One library, connected to one address."""

    name: ClassVar[str]
    left_out: ClassVar[Mapping[str, str]] = {}

    def __init__(self, address: str) -> None:
        self.address = address
        self._producers: list[TransactionalProducer] = []

    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        """A producer that has sent no InitProducerId yet; closed with the library."""
        producer = self._make(transactional_id, timeout_ms)
        self._producers.append(producer)
        return producer

    @abstractmethod
    def _make(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        """A producer of this library."""

    @abstractmethod
    def read(
        self, topic: str, partition: int = 0, *, until: bytes, committed: bool = True, timeout_s: float = 60.0
    ) -> list[bytes]:
        """The values from the partition's start, up to and with `until`, or those that came in `timeout_s`."""

    def close(self) -> None:
        """Ends what the adapter holds."""
        for producer in self._producers:
            producer.close()
