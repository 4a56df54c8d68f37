"""Names of retries: headers of a record that a consumer hands back, and the topics of a group (docs/retries.md).

Consumers, the broker and the native client share them. All values are text; numbers are decimal.
"""

from __future__ import annotations

import re
from typing import Final

TOPIC: Final = "retry.topic"
"""Where the record was at first: topic, partition, offset, and its timestamp in milliseconds."""
PARTITION: Final = "retry.partition"
OFFSET: Final = "retry.offset"
TIMESTAMP: Final = "retry.timestamp"
TOPIC_ID: Final = "retry.topic.id"
"""The id of TOPIC when the record was handed back first: a topic that is created again has another one."""
ATTEMPTS: Final = "retry.attempts"
"""How often consumers have handed the record back. The broker counts; consumers copy it."""
REASON: Final = "retry.reason"
EXCEPTION: Final = "retry.exception"
DEAD: Final = "retry.dead"
"""With the value `true`: to the dead-letter topic at once."""
GROUP: Final = "retry.group"
FIRST_FAILED: Final = "retry.first.failed.timestamp"
LAST_FAILED: Final = "retry.last.failed.timestamp"
REPLAYS: Final = "retry.replays"
"""How often the record was moved out of the dead-letter topic."""
REPLAY: Final = "retry.replay"
"""Beside REPLAYS: the record comes out of the dead-letter topic now. Consumers do not write it."""

DEAD_PREFIX: Final = "__dlq.errors."
DEAD_TOPIC: Final = "__dlq.errors.topic"
"""These six are as in Apache Kafka 4.4 (KIP-1191)."""
DEAD_PARTITION: Final = "__dlq.errors.partition"
DEAD_OFFSET: Final = "__dlq.errors.offset"
DEAD_GROUP: Final = "__dlq.errors.group"
DEAD_COUNT: Final = "__dlq.errors.delivery.count"
DEAD_MESSAGE: Final = "__dlq.errors.message"
DEAD_EXCEPTION: Final = "__dlq.errors.exception"
DEAD_TIMESTAMP: Final = "__dlq.errors.timestamp"
DEAD_FIRST_FAILED: Final = "__dlq.errors.first.failed.timestamp"
DEAD_LAST_FAILED: Final = "__dlq.errors.last.failed.timestamp"
DEAD_REPLAYS: Final = "__dlq.errors.replays"
DEAD_TOPIC_ID: Final = "__dlq.errors.topic.id"
REMOVED: Final = "__dlq.removed"
"""A record of the dead-letter topic with this header is no dead letter: its value names those that were moved out."""

_NAME_LENGTH_MAX: Final = 249
_PLAIN_GROUP: Final = re.compile(r"[A-Za-z0-9_-]+")
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
RETRY_SUFFIX: Final = ".retry"
"""The name of each retry topic that `retry_topic` gives ends with it."""
_DEAD: Final = ".dlq"


def retry_topic(group: str, topic: str) -> str:
    """Return the name of the topic that delivers records of `topic` again to the group.

    It is `TOPIC.GROUP.retry`. If the group's name has other characters than letters, digits, `_` and `-`, or the name
    would be too long for a topic, a hash of both names takes the place of what does not fit.
    """
    return _name(group, topic, RETRY_SUFFIX)


def dead_letter_topic(group: str, topic: str) -> str:
    """Return the name of the group's dead-letter topic for `topic`: as `retry_topic`, with `dlq` at the end."""
    return _name(group, topic, _DEAD)


def _name(group: str, topic: str, end: str) -> str:
    name = f"{topic}.{group}{end}"
    if _PLAIN_GROUP.fullmatch(group) and len(name) <= _NAME_LENGTH_MAX:
        return name
    from hashlib import sha256  # brings OpenSSL, and few groups have such names

    digest = sha256(f"{len(topic)}:{topic}{group}".encode()).hexdigest()[:16]
    return f"{topic[:180]}.{_ILLEGAL.sub('_', group)[:32]}-{digest}{end}"
