"""Say why records are not taken while librdkafka retries them, because librdkafka is silent until it gives up.

What a broker answers to a batch reaches the program only in librdkafka's debug lines. Two of them are read here:

    [thrd:HOST:PORT/ID]: HOST:PORT/ID: TOPIC [PARTITION]: MessageSet with … encountered error: TEXT (actions …Retry…)
    [thrd:main]: Failed to acquire idempotence PID from broker HOST:PORT/ID: TEXT: retrying

The broker is then asked for the state of its disks, because neither KAFKA_STORAGE_ERROR nor the lack of a producer id,
which is written to the metadata first, says that a disk is full.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final

from appliance.cli.connecting import BrokerError, is_spoken
from appliance.protocol.errors import ErrorCode

PATIENCE_S: Final = 1.0
"""A leader that moves is worth no line."""
REPEAT_S: Final = 10.0
DISK_TIMEOUT_S: Final = 2.0
FULL_BYTES: Final = 1 << 20
"""With less room than this a disk is called full."""

DEBUG_OPTIONS: Final[dict[str, object]] = {"debug": "msg", "log_level": 7}

_LINE: Final = re.compile(
    r"\]: (?P<address>\S+)/(?P<broker>-?\d+): (?P<topic>\S+) \[(?P<partition>\d+)\]: MessageSet .*"
    r"encountered error: (?P<error>.*) \(actions .*Retry"
)
_NO_PRODUCER_ID: Final = re.compile(
    r"Failed to acquire idempotence PID from broker (?P<address>\S+)/(?P<broker>-?\d+): (?P<error>.*): retrying"
)


class RetryWatch(logging.Handler):
    """A handler for a producer's debug lines.

    Args:
        say: prints a line for a person.
        give_up_s: how long librdkafka retries, for the text.
    """

    def __init__(self, say: Callable[[str], None], *, give_up_s: float) -> None:
        super().__init__(logging.DEBUG)
        self.last: str | None = None
        """The latest reason why a batch was not taken; None after one was."""
        self._say = say
        self._give_up_s = give_up_s
        self._since_s: float | None = None
        self._said_s = float("-inf")
        self._disk: str | None = None  # what the broker's disk has said of itself, until a record is taken

    def options(self) -> dict[str, object]:
        """The librdkafka settings that bring its debug lines here."""
        logger = logging.getLogger("appliance.cli.produce")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.handlers = [self]
        return {**DEBUG_OPTIONS, "logger": logger}

    def delivered(self) -> None:
        """A record was taken, so that what went before is over."""
        self._since_s = self.last = self._disk = None

    def emit(self, record: logging.LogRecord) -> None:
        """Called by librdkafka's thread of callbacks, in `poll` and `flush`."""
        text = record.getMessage()
        found = _LINE.search(text) or _NO_PRODUCER_ID.search(text)
        if found is None:
            return
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        told = found.groupdict()
        broker, topic = f"broker {told['broker']}", told.get("topic")
        what = (
            f"{broker}: {_reason(told['error'])}"
            if topic
            else (f"{broker} cannot give a producer id: {_reason(told['error'])}")
        )
        if self._disk is not None:
            what = self._disk
        self.last = what
        if now_s - self._since_s < PATIENCE_S or now_s - self._said_s < REPEAT_S:
            return
        self._said_s = now_s
        if topic is None or _code(told["error"]) == ErrorCode.KAFKA_STORAGE_ERROR:
            reason = _disk_reason(told["address"], topic, int(told.get("partition") or 0))
            name = ErrorCode.KAFKA_STORAGE_ERROR.name
            if reason is not None:
                self._disk = self.last = f"{broker} cannot store records: {reason} ({name})"
            elif topic is not None:
                self.last = f"{broker} cannot store records ({name})"
        place = f"{topic}-{told['partition']}: " if topic else ""
        self._say(f"{place}{self.last}; retrying for up to {self._give_up_s:.0f} s")


def _reason(text: str) -> str:
    code = _code(text)
    if code is None:
        return text.removeprefix("Local: ").removeprefix("Broker: ")
    return f"{code.message.rstrip('.')} ({code.name})"


def _code(text: str) -> ErrorCode | None:
    return _codes().get(text)


@cache
def _codes() -> dict[str, ErrorCode]:
    """librdkafka's text → the error code that it stands for."""
    from confluent_kafka import KafkaError

    return {KafkaError(int(code)).str(): code for code in ErrorCode}


def _disk_reason(address: str, topic: str | None, partition: int) -> str | None:
    """What is wrong with the log directory of the partition, or with any without one; None where nothing is known."""
    from appliance.cli.output import shown_bytes
    from appliance.cli.request import request
    from appliance.protocol.api_versions import ApiKey
    from appliance.protocol.apis.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

    if not is_spoken():
        return None
    with suppress(BrokerError):
        topics = () if topic is None else (DescribableLogDirTopic(topic, (partition,)),)
        body = DescribeLogDirsRequest(topics)
        answer = request(address, ApiKey.DESCRIBE_LOG_DIRS, 4, body, oldest=1, timeout_s=DISK_TIMEOUT_S)
        holding = [each for each in answer.results if topic is None or each.topics or each.error_code]
        for each in sorted(holding, key=lambda each: not each.topics):
            if each.error_code:
                return f"its log directory {each.log_dir} has failed"
            if 0 <= each.usable_bytes < FULL_BYTES:
                return f"its disk is full, {shown_bytes(each.usable_bytes)} free in {each.log_dir}"
    return None
