"""When a record is due, as its headers say.

    delivery.delay    milliseconds from when the broker received it
    delivery.at       milliseconds since the epoch; wins where both are there
    delivery.id       a name, by which the record can be cancelled
    delivery.cancel   the record is none to deliver: it cancels the earlier ones of its partition with this id

Times are decimal text. See docs/delayed-delivery.md for what is refused.

Whether a record is delayed, and on which level it waits, depends on the record alone, and not on when it arrives:
`delivery.at` is compared with the record's own timestamp. A batch that is sent again must be divided as it was at
first. Otherwise a record could fall due between the two, and would be in neither part. Only a timestamp that is far
from the broker's time does not count for the level.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from appliance.errors import ApplianceError

DELAY: Final = "delivery.delay"
AT: Final = "delivery.at"
ID: Final = "delivery.id"
CANCEL: Final = "delivery.cancel"
ID_BYTES_MAX: Final = 255
MARK: Final = b"delivery."
"""Bytes without which no header of a batch can ask for delayed delivery."""
DIGITS_MAX: Final = 18
TIMESTAMP_NEAR_MS: Final = 600_000
"""A timestamp is near the time of the broker up to this difference."""
_READ: Final = frozenset({DELAY, AT, ID, CANCEL})


class InvalidDelivery(ApplianceError):
    """The headers of a record do not say when it is due. The client is at fault."""


class Due(NamedTuple):
    """When a record is due, in ms since the epoch, and how long its level must be.

    `is_cancel`: it is no record to deliver, but cancels others, at once.
    """

    at_ms: int
    wait_ms: int
    is_cancel: bool = False


Headers = Iterable[tuple[str, bytes | None]]


def due_of(headers: Headers, *, timestamp_ms: int, now_ms: int, delay_ms_max: int) -> Due | None:
    """Return when the record is due; None if it is not to be delayed.

    Args:
        timestamp_ms: the record's own.
        now_ms: when the broker received it.
        delay_ms_max: how far ahead it may be due.

    Raises:
        InvalidDelivery: a value is no number or no id, contradicts another one, or is too far ahead.
    """
    said: dict[str, bytes | None] = {}
    for name, value in headers:
        if name not in _READ:
            continue
        if name in said and said[name] != value:
            raise InvalidDelivery(f"the header {name} is there twice, with different values")
        said[name] = value
    if CANCEL in said:
        if len(said) > 1:
            raise InvalidDelivery(f"the header {CANCEL} is there beside {AT}, {DELAY} or {ID}")
        _check_id(CANCEL, said[CANCEL])
        return Due(now_ms, 0, is_cancel=True)
    numbers = {name: _number(name, value) for name, value in said.items() if name != ID}
    if not numbers:
        return None
    if ID in said:
        _check_id(ID, said[ID])
    if AT in numbers:
        at_ms = numbers[AT]
        if at_ms <= timestamp_ms:
            return None
        is_near = abs(now_ms - timestamp_ms) <= TIMESTAMP_NEAR_MS
        due = Due(at_ms, at_ms - (timestamp_ms if is_near else now_ms))
    elif numbers[DELAY] == 0:
        return None
    else:
        due = Due(now_ms + numbers[DELAY], numbers[DELAY])
    if due.at_ms - now_ms > delay_ms_max:
        raise InvalidDelivery(
            f"the record is due in {due.at_ms - now_ms} ms; the limit is {delay_ms_max} ms (delivery.delay.max.ms)"
        )
    return due


def _check_id(name: str, value: bytes | None) -> None:
    if not value or len(value) > ID_BYTES_MAX:
        shown = "empty" if not value else f"{len(value)} bytes long"
        raise InvalidDelivery(f"the header {name} is {shown}; it must have 1 to {ID_BYTES_MAX} bytes")


def _number(name: str, value: bytes | None) -> int:
    if value is None or not value.isdigit() or len(value) > DIGITS_MAX:
        shown = "null" if value is None else repr(value[:40])
        raise InvalidDelivery(f"the header {name} is {shown}; it must be milliseconds as a decimal number")
    return int(value)
