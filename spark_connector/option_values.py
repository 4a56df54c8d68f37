"""How the values of options are read: numbers, durations, sizes, lists, offsets by partition. All refuse by name."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from appliance.errors import ConfigurationError

OffsetsByPartition = dict[str, dict[int, int]]
"""Topic, partition, number: an offset, or a timestamp in milliseconds."""

_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)")
_DURATION_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_SIZE_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_INT64_MAX: Final = (1 << 63) - 1


class InvalidOption(ConfigurationError):
    """An option that is unknown, or wrong, or contradicts another. The text names it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"option {self.name}: {self.reason}"


def boolean(name: str, text: str) -> bool:
    """`true` or `false`, in any case."""
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise InvalidOption(name, f"{text!r} is neither true nor false")
    return value == "true"


def number(name: str, text: str, *, least: int = 1) -> int:
    """An integer from `least` to what 64 bits hold."""
    try:
        value = int(text.strip())
    except ValueError:
        raise InvalidOption(name, f"{text!r} is no integer") from None
    if not least <= value <= _INT64_MAX:
        raise InvalidOption(name, f"{value} is not from {least} to {_INT64_MAX}")
    return value


def choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    """One of `choices`, in any case."""
    value = text.strip().lower()
    if value not in choices:
        raise InvalidOption(name, f"{text!r} is none of {', '.join(choices)}")
    return value


def duration_ms(name: str, text: str) -> int:
    """A number with ms, s, m, h or d behind it, in milliseconds; a bare number is milliseconds."""
    bare = text.strip().lower()
    if bare.isascii() and bare.isdigit():
        return number(name, bare, least=0)
    match = _DURATION.fullmatch(bare)
    if match is None:
        raise InvalidOption(name, f"{text!r} is no duration such as 500ms, 30s, 15m, 1h")
    return number(name, match[1], least=0) * _DURATION_MS[match[2]]


def size_bytes(name: str, text: str) -> int:
    """A number of bytes, or of k, m or g."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidOption(name, f"{text!r} is no size such as 67108864 or 64m")
    value = int(match[1]) * _SIZE_BYTES[match[2].lower()]
    return number(name, str(value))


def names(name: str, text: str) -> tuple[str, ...]:
    """Names between commas, or a JSON array of them. None may be empty or come twice."""
    parts: Any = text.split(",")
    if text.lstrip().startswith("["):
        parts = _json(name, text)
        if not all(isinstance(part, str) for part in parts):
            raise InvalidOption(name, "a JSON array of strings is expected")
    found = tuple(part.strip() for part in parts)
    if not found or not all(found):
        raise InvalidOption(name, f"{text!r} holds an empty name")
    if len(set(found)) != len(found):
        raise InvalidOption(name, f"{text!r} says one name twice")
    return found


def partitions(name: str, text: str) -> dict[str, tuple[int, ...]]:
    """`{"topic": [0, 1], …}`."""
    value = _json(name, text)
    if not isinstance(value, dict) or not value:
        raise InvalidOption(name, 'JSON such as {"topic": [0, 1]} is expected')
    found = {}
    for topic, numbers in value.items():
        if not isinstance(numbers, list) or not all(_is_integer(n) and n >= 0 for n in numbers):
            raise InvalidOption(name, f"the partitions of {topic} are no list of numbers")
        if not numbers or len(set(numbers)) != len(numbers):
            raise InvalidOption(name, f"the partitions of {topic} are none, or one comes twice")
        found[topic] = tuple(sorted(numbers))
    return found


def numbers_by_partition(name: str, text: str, *, least: int) -> OffsetsByPartition:
    """`{"topic": {"0": 23, "1": -2}, …}` with numbers from `least` on."""
    value = _json(name, text)
    if not isinstance(value, dict) or not value:
        raise InvalidOption(name, 'JSON such as {"topic": {"0": 23}} is expected')
    found: OffsetsByPartition = {}
    for topic, by_partition in value.items():
        if not isinstance(by_partition, dict):
            raise InvalidOption(name, f"{topic} has no JSON object of partitions")
        found[topic] = {}
        for partition, content in by_partition.items():
            # One way to write a number: else "0" and "00" contradict each other, and one of them wins.
            if not (partition.isascii() and partition.isdigit()) or partition != str(int(partition)):
                raise InvalidOption(name, f"{partition!r} is no partition of {topic}")
            if not _is_integer(content) or not least <= content <= _INT64_MAX:
                raise InvalidOption(name, f"{content!r} of {topic}-{partition} is no number from {least} on")
            found[topic][int(partition)] = content
    return found


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _json(name: str, text: str) -> Any:
    def told_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise InvalidOption(name, f"{text!r} says one name twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=told_once)
    except (ValueError, RecursionError):
        raise InvalidOption(name, f"{text!r} is no JSON") from None
