"""Divides a batch that consumers produced to a retry topic: each record is delivered again later, or is dead.

    record of the consumer ─ history ─┬ a dead letter, or handed back too often ─→ dead-letter topic, at once
                                      ├ out of the dead-letter topic ───────────→ retry topic, at once
                                      └ else ───────────────────────────────────→ retry topic, after the level's delay

No record of the batch itself is appended: the kept batch has none, and the offsets of the Produce answer stay a gap.
Two hand-backs of the same delivery count once: they have the same first place and the same number of attempts, and the
services process drops the second one. So a consumer that dies between handing a record back and committing its offset
doubles nothing. The partition of the retry topic follows from the first place, so both go to the same forwarder.

The targets come from the settings of topics only (`rules`), whatever the headers say.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.delivery.arriving import Delayed
from appliance.delivery.division import DELAYED_MAX, Division, RefusedDelay, Rules, kept_batch, sound
from appliance.delivery.due import AT, CANCEL, DELAY, Due
from appliance.delivery.waiting import HANDED_BACK, OVERHEAD_BYTES, Origin, Waiting
from appliance.protocol import retry_names as names
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.record import Record, decode_one
from appliance.protocol.records.varint import read_varint
from appliance.retries.history import History, Place, cut, history_of, last_value, without_history
from appliance.retries.rules import RECORD_BYTES_MAX, RetryRules

_DEAD: Final = (1 << 31) - 1
_DELIVERY: Final = frozenset({AT, DELAY, CANCEL})
_HEADERS_BYTES: Final = 4_096
"""What the headers of the history take at most, beside the reason and the exception."""


class HandedBack(NamedTuple):
    """A record that was handed back. `attempts` counts this time.

    `why_dead`: why it goes to the dead-letter topic; empty if it does not.
    """

    rules: RetryRules
    record: Record
    history: History
    attempts: int
    due: Due
    why_dead: str
    now_ms: int

    @property
    def is_dead(self) -> bool:
        """Whether it goes to the dead-letter topic."""
        return bool(self.why_dead)

    def waiting(self, partition: int, offset: int) -> Waiting:
        """Return the delayed record.

        Args:
            partition: to which it was produced.
            offset: the one that the Produce answer names for it. Both stand in for the first place where none is said.
        """
        rules, history = self.rules, self.history
        first = history.first or Place(rules.name, partition, offset)
        if not first.topic:
            first = first._replace(topic=rules.source)
        topic_id = self._topic_id(first)
        origin = Origin(
            _identity(first, topic_id, history.replays),
            HANDED_BACK,
            _DEAD if self.why_dead else self.attempts,
        )
        dead = rules.dead_letters
        if self.why_dead and dead is not None:
            target, headers = (
                (dead.topic_id, first.partition % dead.partitions),
                self._dead_headers(first, topic_id),
            )
        else:
            target, headers = (
                (rules.topic_id, first.partition % rules.partitions),
                self._headers(first, topic_id),
            )
        record = self.record
        # The forwarder acts on these headers of a record that waits. A record of the source topic can have them, too:
        # with `delivery.cancel` it would be taken for a cancellation, and be lost.
        kept = [each for each in without_history(record.headers) if each[0] not in _DELIVERY]
        # As of each delay: if the clock is set back, no more is left than what the record has not waited.
        kept.append((DELAY, b"%d" % self.due.wait_ms))
        return Waiting(
            *target,
            offset,
            self.due.at_ms,
            origin,
            Record(record.value, record.key, (*kept, *headers), record.timestamp_ms),
        )

    def _topic_id(self, first: Place) -> str:
        """Return the id of the first topic: what the headers say, else the one that the topic has now."""
        if self.history.topic_id:
            return self.history.topic_id
        return self.rules.source_id if first.topic == self.rules.source else ""

    def _headers(self, first: Place, topic_id: str) -> list[tuple[str, bytes | None]]:
        history = self.history
        said: list[tuple[str, object]] = [
            (names.GROUP, self.rules.group),
            (names.TOPIC, first.topic),
            (names.PARTITION, first.partition),
            (names.OFFSET, first.offset),
            (names.TOPIC_ID, topic_id),
            (names.ATTEMPTS, self.attempts),
            (names.REPLAYS, history.replays),
        ]
        if history.timestamp_ms >= 0:
            said.append((names.TIMESTAMP, history.timestamp_ms))
        if not history.is_replay:
            said += [(names.FIRST_FAILED, self._first_failed_ms), (names.LAST_FAILED, self.now_ms)]
        said += [(names.REASON, history.reason), (names.EXCEPTION, history.exception)]
        return [(name, cut(str(value))) for name, value in said if value != ""]

    def _dead_headers(self, first: Place, topic_id: str) -> list[tuple[str, bytes | None]]:
        history = self.history
        said: list[tuple[str, object]] = [
            (names.DEAD_TOPIC, first.topic),
            (names.DEAD_PARTITION, first.partition),
            (names.DEAD_OFFSET, first.offset),
            (names.DEAD_TOPIC_ID, topic_id),
            (names.DEAD_GROUP, self.rules.group),
            (names.DEAD_COUNT, self.attempts),
            (names.DEAD_MESSAGE, self._dead_message),
            (names.DEAD_EXCEPTION, history.exception),
            (names.DEAD_FIRST_FAILED, self._first_failed_ms),
            (names.DEAD_LAST_FAILED, self.now_ms),
            (names.DEAD_REPLAYS, history.replays),
        ]
        if history.timestamp_ms >= 0:
            said.append((names.DEAD_TIMESTAMP, history.timestamp_ms))
        return [(name, cut(str(value))) for name, value in said if value != ""]

    @property
    def _dead_message(self) -> str:
        """The last reason of a consumer; if the record is dead for another reason, both."""
        history = self.history
        is_usual = not history.fault and (history.is_dead or self.attempts > self.rules.retries_max)
        if is_usual or not history.reason:
            return history.reason or self.why_dead
        return f"{self.why_dead} (retry.reason: {history.reason})"

    @property
    def _first_failed_ms(self) -> int:
        return self.history.first_failed_ms if self.history.first_failed_ms >= 0 else self.now_ms


def hand_back(batch: memoryview, rules: Rules, retry: RetryRules, *, now_ms: int) -> Division | None:
    """Divide a batch that a consumer produced to a retry topic; None if it is no sound batch: the worker refuses it.

    Raises:
        RefusedDelay: retries are disabled, or a record is too large, or in a transaction.
    """
    found = sound(batch, rules, needs_mark=False)
    if found is None:
        return None
    header, data = found
    if not retry.is_enabled:
        raise RefusedDelay(
            0, ErrorCode.POLICY_VIOLATION, f"retries of the group {retry.group!r} are disabled (retry.enable)"
        )
    if header.is_transactional:
        raise RefusedDelay(
            0, ErrorCode.INVALID_RECORD, "a record of a transaction cannot be delivered with a delay"
        )
    if header.records_count > DELAYED_MAX:
        raise RefusedDelay(
            0, ErrorCode.MESSAGE_TOO_LARGE, f"the batch has over {DELAYED_MAX} records that are handed back"
        )
    handed_back: list[HandedBack] = []
    at = 0
    for index in range(header.records_count):
        length, body = read_varint(data, at)
        if length + OVERHEAD_BYTES + _HEADERS_BYTES + b.HEADER_BYTES > min(
            RECORD_BYTES_MAX, rules.message_bytes_max
        ):
            raise RefusedDelay(
                index,
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the record has {length} bytes; the limit is {RECORD_BYTES_MAX}, and max.message.bytes of the topic",
            )
        handed = handed_back_of(decode_one(data, at, header), retry, now_ms=now_ms)
        if retry.is_ordered and not (handed.why_dead or handed.history.is_dead or handed.history.is_replay):
            raise RefusedDelay(
                index,
                ErrorCode.POLICY_VIOLATION,
                f"the group {retry.group!r} asks for the order (retry.ordered): its consumers keep a failed record, "
                "and hand back only dead ones (retry.dead)",
            )
        handed_back.append(handed)
        at = body + length
    return Division(
        kept_batch(header, [], 0, max_timestamp_ms=b.NO_TIMESTAMP, now_ms=now_ms),
        [
            Delayed(index, each.due.at_ms, each.due.wait_ms, each.due.is_cancel, 0, b"")
            for index, each in enumerate(handed_back)
        ],
        Origin(header.producer_id, header.producer_epoch, header.base_sequence),
        is_transactional=False,
        redirected=tuple(handed_back),
    )


def handed_back_of(record: Record, rules: RetryRules, *, now_ms: int) -> HandedBack:
    """Return what becomes of one record."""
    history = history_of(record.headers)
    if not history.is_replay:
        history = _own(record, history, rules)
    if history.is_replay:
        history = history._replace(replays=max(history.replays, 1), first_failed_ms=-1)
        return HandedBack(rules, record, history, 0, Due(now_ms, 0), "", now_ms)
    attempts = history.attempts + 1
    why = _why_dead(history, attempts, rules)
    if why and rules.dead_letters is not None:
        return HandedBack(rules, record, history, attempts, Due(now_ms, 0), why, now_ms)
    # Without a dead-letter topic a dead record comes again on the last level, so that nothing is lost.
    wait_ms = rules.levels_ms[-1 if why else min(attempts, len(rules.levels_ms)) - 1]
    return HandedBack(rules, record, history, attempts, Due(now_ms + wait_ms, wait_ms), "", now_ms)


def _own(record: Record, history: History, rules: RetryRules) -> History:
    """Return the history without what is that of another record, whose headers a program has copied to this one.

    Several records can have the same copied place. They would be taken for one delivery that was handed back several
    times, and all but one would be dropped.
    """
    is_of_source = history.first is None or history.first.topic in {"", rules.source, rules.name}
    group = last_value(record.headers, names.GROUP)
    is_of_group = group is None or group == cut(rules.group)
    if is_of_source and is_of_group:
        return history
    if is_of_group and last_value(record.headers, names.TOPIC) is None:  # another library says it
        return history._replace(first=None, topic_id="")
    return history._replace(
        first=None, timestamp_ms=-1, attempts=0, first_failed_ms=-1, replays=0, topic_id=""
    )


def _why_dead(history: History, attempts: int, rules: RetryRules) -> str:
    if history.fault:
        return history.fault
    if history.is_dead:
        return "the consumer rejected the record"
    if (
        history.first is not None
        and history.first.topic == rules.name
        and not (history.attempts or history.replays)
    ):
        return "the record came from the retry topic without its headers retry.*; a consumer must copy them"
    if attempts > rules.retries_max:
        return f"consumers failed {attempts} times, and retry.max is {rules.retries_max}"
    return ""


def _identity(first: Place, topic_id: str, replays: int) -> int:
    """Return a number from 0 to 2^63 - 1 that two records share only if they have the same first place.

    The id of the topic is part of it, because a topic that is deleted and created again has the same offsets again.
    """
    from hashlib import blake2b  # brings OpenSSL, and few instances have retries

    said = f"{first.topic}\0{topic_id}\0{first.partition}\0{first.offset}\0{replays}".encode()
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "big") >> 1
