"""A transactional producer of librdkafka, in the words of `raw_transactions`; it speaks version 1."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.checker.raw_transactions import Fenced, InDoubt, MustAbort
from tests.checker.transaction_history import NOT_KNOWN, Place

PATIENCE_S: Final = 60.0
CALL_S: Final = 10.0
HUNG_S: Final = 60.0


class Hung(Exception):
    """A call of the library does not come back. The run fails: nothing that the broker does may cause this."""


class LibraryProducer:
    """Arguments as of `RawProducer`.

    Attributes:
        trouble: the last errors after which a call was made again, with the seconds that the call took.
    """

    def __init__(self, addresses: str, transactional_id: str, *, timeout_ms: int = 30_000) -> None:
        self.transactional_id = transactional_id
        self.trouble: deque[str] = deque(maxlen=5)
        self._producer = Producer(
            {
                "bootstrap.servers": addresses,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "socket.timeout.ms": min(10_000, timeout_ms),
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 20,
                "linger.ms": 1,
                # With the default, `rebootstrap`, librdkafka 2.16 replaces all its brokers after none could be reached,
                # but its cache of coordinators keeps the replaced ones. `send_offsets_to_transaction` then waits for a
                # broker to which nobody connects, until the cache forgets it.
                "metadata.recovery.strategy": "none",
            },
            logger=_silent(),
        )

    def start(self) -> None:
        self._retried(lambda: self._producer.init_transactions(CALL_S))

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise Fenced(str(error)) from None

    def write(self, place: Place, values: Sequence[bytes]) -> int:
        """The offset of the first of them; the others follow it, maybe in another batch."""
        offsets: list[int] = []
        refused: list[KafkaError] = []

        def answered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None:
                refused.append(error)
            elif offset is not None:
                offsets.append(offset)

        try:
            for value in values:
                self._producer.produce(place.topic, value, partition=place.partition, on_delivery=answered)
            left = self._producer.flush(PATIENCE_S)
        except KafkaException as error:
            raise _failure(error.args[0]) from None
        except SystemError as error:
            # A fatal error, such as that of a zombie, is raised by confluent_kafka from within the call. A delivery
            # report that comes in the same call then runs with this exception set, which Python takes for a defect.
            cause = error.__cause__
            if not isinstance(cause, KafkaException):
                raise
            raise _failure(cause.args[0]) from None
        if refused:
            raise _failure(refused[0])
        if left:
            raise MustAbort(f"{left} records wait")
        return offsets[0] if len(offsets) == len(values) else NOT_KNOWN

    def send_offsets(self, consumer: Consumer, offsets: dict[Place, int]) -> None:
        """Of a member of a group."""
        wanted = [TopicPartition(place.topic, place.partition, offset) for place, offset in offsets.items()]
        member = consumer.consumer_group_metadata()
        self._retried(lambda: self._producer.send_offsets_to_transaction(wanted, member, CALL_S))

    def end(self, *, commit: bool) -> None:
        """As of `RawProducer`, but each error of a commit leaves it in doubt, because lost answers are not told."""
        if not commit:
            self._retried(lambda: self._producer.abort_transaction(CALL_S))
            return
        try:
            self._retried(lambda: self._producer.commit_transaction(CALL_S))
        except (Fenced, MustAbort) as error:
            raise InDoubt(str(error)) from None

    def close(self) -> None:
        self._producer.purge()

    def _retried(self, call: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            began = time.monotonic()
            try:
                _bounded(call)
                return
            except KafkaException as error:
                self.trouble.append(f"{error.args[0].str()} after {time.monotonic() - began:.1f} s"[:150])
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise _failure(error.args[0]) from None


def _bounded(call: Callable[[], object]) -> None:
    """Makes the call on a thread that may stay behind, so that a call without an end does not stop the checker.

    Raises:
        Hung: the call has not come back; nothing more can be asked of this producer.
    """
    raised: list[KafkaException] = []

    def made() -> None:
        try:
            call()
        except KafkaException as error:
            raised.append(error)

    thread = threading.Thread(target=made, daemon=True)
    thread.start()
    thread.join(HUNG_S)
    if thread.is_alive():
        raise Hung(f"librdkafka's call has not come back within {HUNG_S:.0f} s")
    if raised:
        raise raised[0]


def _silent() -> logging.Logger:
    """librdkafka tells of each zombie that it is fenced, at a level that cannot be switched off."""
    logger = logging.Logger("transactions")
    logger.addHandler(logging.NullHandler())
    return logger


def _failure(error: KafkaError) -> Fenced | MustAbort:
    return Fenced(error.str()) if error.fatal() else MustAbort(error.str())
