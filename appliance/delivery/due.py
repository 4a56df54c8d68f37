"""When a record is due, as its headers say.

    delivery.delay    milliseconds from when the broker received it
    delivery.at       milliseconds since the epoch; wins where both are there

Values are decimal text. See docs/delayed-delivery.md for what is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from appliance.errors import ApplianceError

DELAY: Final = "delivery.delay"
AT: Final = "delivery.at"
MARK: Final = b"delivery."
"""Bytes without which no header of a batch can ask for delayed delivery."""
_DIGITS_MAX: Final = 18


class InvalidDelivery(ApplianceError):
    """The headers of a record do not say when it is due. The client is at fault."""


Headers = Iterable[tuple[str, bytes | None]]


def due_ms(headers: Headers, *, now_ms: int, delay_ms_max: int) -> int | None:
    """Return when the record is due, in ms since the epoch; None if it is not to be delayed.

    Args:
        now_ms: when the broker received it.
        delay_ms_max: how far ahead it may be due.

    Raises:
        InvalidDelivery: a value is no number, contradicts another one, or is too far ahead.
    """
    said: dict[str, bytes | None] = {}
    for name, value in headers:
        if name not in {DELAY, AT}:
            continue
        if name in said and said[name] != value:
            raise InvalidDelivery(f"the header {name} is there twice, with different values")
        said[name] = value
    if not said:
        return None
    numbers = {name: _number(name, value) for name, value in said.items()}
    due = numbers[AT] if AT in numbers else now_ms + numbers[DELAY]
    if due <= now_ms:
        return None
    if due - now_ms > delay_ms_max:
        raise InvalidDelivery(
            f"the record is due in {due - now_ms} ms; the limit is {delay_ms_max} ms (delivery.delay.max.ms)"
        )
    return due


def _number(name: str, value: bytes | None) -> int:
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        shown = "null" if value is None else repr(value[:40])
        raise InvalidDelivery(f"the header {name} is {shown}; it must be milliseconds as a decimal number")
    return int(value)
