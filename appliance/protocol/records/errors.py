"""What can be wrong with a batch, each with the code that Kafka gives it.

RejectedRequest
└── BatchFault
    ├── CorruptBatch       bytes that fail their checksum or their own lengths   CORRUPT_MESSAGE
    ├── InvalidRecords     a sound batch whose records do not add up             INVALID_RECORD
    │   └── MissingKey     a record without a key on a compacted topic           INVALID_RECORD
    ├── InvalidTimestamp   a record from too far away in time                    INVALID_TIMESTAMP
    ├── BatchTooLarge      over max.message.bytes, or over it once decompressed  MESSAGE_TOO_LARGE
    └── UnknownCodec       a codec number nobody has assigned                    UNSUPPORTED_COMPRESSION_TYPE
"""

from __future__ import annotations

from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode


class BatchFault(RejectedRequest):
    """A record batch that cannot be taken as it is."""


class CorruptBatch(BatchFault):
    """The bytes fail their checksum, or lengths inside of them contradict each other."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class InvalidRecords(BatchFault):
    """The checksum holds, but the batch or its records break a rule of the format."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class MissingKey(InvalidRecords):
    """At least one record of a batch for a compacted topic has no key."""


class InvalidTimestamp(BatchFault):
    """A timestamp outside of what the topic takes.

    Args:
        bounds_ms: the earliest and the latest timestamp that the topic takes, in ms since the epoch; None where the
            whole batch is refused for another reason.
    """

    def __init__(self, message: str, *, bounds_ms: tuple[int, int] | None = None) -> None:
        super().__init__(ErrorCode.INVALID_TIMESTAMP, message)
        self.bounds_ms = bounds_ms


class BatchTooLarge(BatchFault):
    """More bytes than the topic, or the decompression bound, allows."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


class UnknownCodec(BatchFault):
    """Codec bits 5 to 7 have no meaning yet."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
