"""The error tree of the client: *what the caller can do* stands at the root.

    ClientError
    ├── UsageError               the call itself is wrong; calling again will not help
    │   ├── OptionError              an unknown, wrong or contradictory option
    │   ├── ClosedError              the producer or consumer is closed
    │   ├── ForkedError              the process was forked after the client was made
    │   └── IllegalStateError        not now: no transaction, no assignment, another thread polls
    ├── TransportError           (retriable) no connection, or it was lost before an answer came
    │   └── AuthenticationError      (not retriable) the broker refuses the login, or has not proved who it is
    ├── TimedOutError            (retriable) not done in time; is a TimeoutError
    │   ├── BufferFullError          buffer.memory stayed full, or metadata missing, for max.block.ms
    │   └── DeliveryTimeoutError     a record was not acknowledged within delivery.timeout.ms
    ├── RecordTooLargeError      larger than max.request.size, or than this transport takes
    ├── SerializationError       a serializer, deserializer or interceptor's output cannot be used
    │   └── RecordDeserializationError   a deserializer refuses a record; seek to `offset` + 1 to step over it
    ├── CorruptRecordsError      fetched bytes fail their checksum or do not parse
    ├── UnsupportedVersionError  the broker does not speak what the call needs
    ├── BrokerError              the broker answered with an error; `code` is Kafka's
    │   ├── OffsetOutOfRangeError    and auto.offset.reset is none
    │   └── CommitFailedError        the member left its group's generation before the commit
    ├── ProcessingError          the application's own function failed on `record` (parallel.py)
    ├── NoOffsetError            no committed offset, and auto.offset.reset is none
    └── TransactionError         (`code` is Kafka's where the broker said so)
        ├── TransactionAbortedError  the record was dropped because its transaction was aborted
        ├── AbortableError           abort the transaction; then the producer goes on
        └── FatalTransactionError    close the producer
            └── ProducerFencedError      a newer producer with this transactional id has taken over

`retriable` says whether the same call may succeed later. `code` is Kafka's error code, -1 where there is none.
`partition` is the topic and partition that a consumer cannot read on, None where the error is about none.
`row` is the row of a table that cannot be sent, counted from 0; the text begins with it. None where it is not one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from appliance_client.values import ConsumerRecord, TopicPartition


class ClientError(Exception):
    """Root of everything that this package raises on purpose."""

    retriable: bool = False
    code: int = -1
    partition: TopicPartition | None = None
    row: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross the border of a process whole: the pools of `concurrent.futures` pickle them."""
        return _restored, (type(self), self.args, self.__dict__)


class UsageError(ClientError):
    """The call itself is wrong."""


class OptionError(UsageError):
    """An unknown, wrong or contradictory option."""


class ClosedError(UsageError):
    """The producer or consumer is closed."""


class ForkedError(UsageError):
    """The process was forked after the client was made; a child process makes a client of its own."""


class IllegalStateError(UsageError):
    """The call is not allowed in this state."""


class TransportError(ClientError):
    """There is no connection, or it was lost before an answer came."""

    retriable = True
    code = int(ErrorCode.NETWORK_EXCEPTION)


class AuthenticationError(TransportError):
    """The broker refuses the client's login, or has not proved that it knows the client's password.

    The client goes on trying, with its reconnect backoff, because a user or a token may be made later.
    """

    retriable = False
    code = int(ErrorCode.SASL_AUTHENTICATION_FAILED)


class TimedOutError(ClientError, TimeoutError):
    """Not done in time."""

    retriable = True
    code = int(ErrorCode.REQUEST_TIMED_OUT)


class BufferFullError(TimedOutError):
    """No room in buffer.memory, or no metadata of the topic, for max.block.ms."""


class DeliveryTimeoutError(TimedOutError):
    """A record was not acknowledged within delivery.timeout.ms. It may have been written all the same."""


class RecordTooLargeError(ClientError):
    """The record alone is larger than max.request.size, or a request than the transport takes. Nothing was sent."""

    code = int(ErrorCode.MESSAGE_TOO_LARGE)


class SerializationError(ClientError):
    """A serializer or deserializer failed, or returned what cannot be sent."""


class RecordDeserializationError(SerializationError):
    """The application's deserializer refuses a record. The position stays at it: poll raises again, until a seek.

        except RecordDeserializationError as error:
            consumer.seek(error.partition, error.offset + 1)

    `record` has the bytes of key and value as they were read, `origin` says which of the two was refused ("key" or
    "value"), and `__cause__` is what the deserializer raised. Source: KIP-334 and KIP-1036.
    """

    partition: TopicPartition

    def __init__(
        self, partition: TopicPartition, record: ConsumerRecord, *, origin: str, error: Exception
    ) -> None:
        super().__init__(
            f"{record.topic}-{record.partition}@{record.offset}: the {origin}_deserializer raised "
            f"{type(error).__name__}: {error}; seek to offset {record.offset + 1} to step over the record"
        )
        self.record = record
        self.origin = origin
        self.offset = record.offset
        self.partition = partition


class CorruptRecordsError(ClientError):
    """Fetched bytes fail their checksum or do not parse."""

    code = int(ErrorCode.CORRUPT_MESSAGE)


class UnsupportedVersionError(ClientError):
    """The broker does not speak what the call needs."""

    code = int(ErrorCode.UNSUPPORTED_VERSION)


class BrokerError(ClientError):
    """The broker answered with an error.

    Args:
        code: Kafka's error code.
        message: what the broker said, or None for the code's usual sentence.
    """

    def __init__(self, code: int, message: str | None = None) -> None:
        name, usual, self.retriable = described(code)
        super().__init__(f"{name}: {message or usual}")
        self.code = code
        self.name = name


class OffsetOutOfRangeError(BrokerError):
    """The position lies outside of the partition, and auto.offset.reset is none."""


class CommitFailedError(BrokerError):
    """The member is not in this generation of its group any more; its partitions may belong to another one."""


class ProcessingError(ClientError):
    """The application's function failed on `record`; the cause is its error. See `parallel.ParallelConsumer`."""

    record: ConsumerRecord | None = None


class NoOffsetError(ClientError):
    """No offset is committed, and auto.offset.reset is none."""


class TransactionError(ClientError):
    """Something failed in a transaction."""

    def __init__(self, message: str, code: int = -1) -> None:
        super().__init__(message)
        self.code = code


class TransactionAbortedError(TransactionError):
    """The record was dropped because its transaction was aborted."""


class AbortableError(TransactionError):
    """The transaction cannot commit. `abort_transaction` makes the producer usable again."""


class FatalTransactionError(TransactionError):
    """The producer cannot go on; close it."""


class ProducerFencedError(FatalTransactionError):
    """A newer producer with this transactional id has taken over, or the transaction timed out."""


def _restored(kind: type[ClientError], args: tuple[Any, ...], state: dict[str, Any]) -> ClientError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def described(code: int) -> tuple[str, str, bool]:
    """(name, sentence, whether retriable) of a code; one that Kafka does not know yet is not retriable."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return f"ERROR_{code}", "The broker answered with an error that this client does not know.", False
    return known.name, known.message, known.retriable


def error_of(code: int, message: str | None = None) -> BrokerError:
    """The exception for a code that a broker answered."""
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return OffsetOutOfRangeError(code, message)
    return BrokerError(code, message)
