"""Libraries of other languages: a driver process each (adapters/driver_process.py).

An operation names the producer by a number. A value travels as base64.
"""

from __future__ import annotations

import subprocess
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.clients.adapters.driver_process import DriverProcess
from tests.clients.transactional.library import TransactionalLibrary, TransactionalProducer
from tests.support import apache_kafka, kafka_3

ROOM: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOM / "java" / "Transactions.java"
FRANZ_GO: Final = ROOM.parents[1] / ".cache" / "franz-go" / "driver"


class DriverLibrary(TransactionalLibrary):
    """A library in another process, which serves the next one after it is closed."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._driver = DriverProcess(f"transactions of {self.name}", self.command)
        self.ask = self._driver.ask
        self._count = 0
        self.ask("connect", address=address)

    @staticmethod
    @abstractmethod
    def command() -> Sequence[str]:
        """The command line of the driver."""

    def _make(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        self._count += 1
        return DriverProducer(self, self._count, transactional_id, timeout_ms)

    def read(
        self, topic: str, partition: int = 0, *, until: bytes, committed: bool = True, timeout_s: float = 60.0
    ) -> list[bytes]:
        told = self.ask(
            "read",
            topic=topic,
            partition=partition,
            until=b64encode(until).decode(),
            committed=committed,
            timeoutMs=int(timeout_s * 1000),
        )
        return [b64decode(value) for value in told]

    def close(self) -> None:
        if self._driver.runs:
            super().close()
            self._driver.release()


class DriverProducer(TransactionalProducer):
    """A producer in the driver's process."""

    def __init__(self, library: DriverLibrary, number: int, transactional_id: str, timeout_ms: int) -> None:
        self._library = library
        self._number = number
        self._ask("producer", id=transactional_id, timeoutMs=timeout_ms)

    def _ask(self, operation: str, **request: Any) -> None:
        self._library.ask(operation, producer=self._number, **request)

    def init(self) -> None:
        self._ask("init")

    def begin(self) -> None:
        self._ask("begin")

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        packed = [b64encode(value).decode() for value in values]
        self._ask("send", topic=topic, partition=partition, values=packed)

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        places = [[topic, partition, offset] for (topic, partition), offset in offsets.items()]
        self._ask("sendOffsets", group=group, offsets=places)

    def commit(self) -> None:
        self._ask("commit")

    def abort(self) -> None:
        self._ask("abort")

    def close(self) -> None:
        self._ask("closeProducer")


class JavaTransactions(DriverLibrary):
    """kafka-clients of the judge: version 2 of the protocol."""

    name: ClassVar[str] = "java"

    @staticmethod
    def command() -> Sequence[str]:
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
        return [*apache_kafka.java(*options, classes=apache_kafka.compiled(SOURCE)), "Transactions"]


class Java3Transactions(DriverLibrary):
    """kafka-clients 3.9, which knows version 1 of the protocol only."""

    name: ClassVar[str] = "java-3"

    @staticmethod
    def command() -> Sequence[str]:
        kafka_3.install()
        path = f"{apache_kafka.compiled(SOURCE)}:{kafka_3.LIBS}/*"
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
        return ["java", *options, "-cp", path, "Transactions"]


class KafkajsTransactions(DriverLibrary):
    """KafkaJS: version 1 of the protocol."""

    name: ClassVar[str] = "kafkajs"

    @staticmethod
    def command() -> Sequence[str]:
        return ["node", str(ROOM / "kafkajs" / "transactions.js")]


_OWN_GROUP: Final = "commits offsets only of the group that it consumes in: test_franz_go.py"


class FranzGoTransactions(DriverLibrary):
    """franz-go: version 2 of the protocol, not by the Java client."""

    name: ClassVar[str] = "franz-go"
    left_out: ClassVar[Mapping[str, str]] = {
        "fenced-on-send-offsets": _OWN_GROUP,
        "offsets-committed": _OWN_GROUP,
        "offsets-alone": _OWN_GROUP,
        "offsets-aborted": _OWN_GROUP,
        "offsets-of-a-crash": _OWN_GROUP,
        "copied": _OWN_GROUP,
    }

    @staticmethod
    def command() -> Sequence[str]:
        _build_franz_go()
        return [str(FRANZ_GO)]


@cache
def _build_franz_go() -> None:
    """Returns at once when the program is there."""
    script = ROOM.parents[1] / "scripts" / "install-franz-go.sh"
    subprocess.run([str(script)], check=True, capture_output=True, text=True, timeout=600)
