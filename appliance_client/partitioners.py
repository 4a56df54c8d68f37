"""Which partition a record goes to that names none.

A partitioner is any callable `(topic, key, partitions, available) -> int`: `key` is the serialized key or None,
`partitions` their number, `available` the indexes of those that have a leader. The names below choose one of ours:

    murmur2       Kafka's default: murmur2 of the key; without a key, sticky
    sticky        one partition until about a batch is full, then another one, whatever the key (KIP-480)
    round-robin   one after the other, whatever the key
    random        a random one, whatever the key
    consistent    librdkafka's murmur2_random: murmur2 of the key; without a key, random
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from appliance_client.errors import OptionError
from appliance_client.intake import Sticky
from appliance_client.kernel import partition_of_key

Partitioner = Callable[[str, bytes | None, int, Sequence[int]], int]

__all__ = ["Partitioner", "RandomPartitioner", "RoundRobin", "Sticky", "murmur2_or", "partitioner_of"]


class RoundRobin:
    """Each partition in turn."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, _key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        number = self._next.get(topic, 0)
        self._next[topic] = number + 1
        return available[number % len(available)] if available else number % partitions


class RandomPartitioner:
    """Any partition."""

    def __call__(self, _topic: str, _key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        return _any(partitions, available)


def murmur2_or(fallback: Partitioner) -> Partitioner:
    """Kafka's hash where there is a key, else `fallback`."""

    def choose(topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        if key is None:
            return fallback(topic, key, partitions, available)
        return partition_of_key(key, partitions)

    return choose


def partitioner_of(chosen: Any, batch_bytes: int) -> tuple[Partitioner, Sticky | None, bool]:
    """(the partitioner, the sticky part of it, whether a key decides by murmur2) for the option `partitioner`.

    Raises:
        OptionError: the name is none of ours, and it is no callable.
    """
    if callable(chosen):
        return chosen, None, False
    sticky = Sticky(batch_bytes)
    if chosen in ("murmur2", "default", None):
        return murmur2_or(sticky), sticky, True
    if chosen == "sticky":
        return sticky, sticky, False
    if chosen in _PLAIN:
        return _PLAIN[chosen]()
    raise OptionError(f"partitioner is {chosen!r}: murmur2, sticky, {', '.join(_PLAIN)}, or a callable")


_PLAIN: Final[dict[str, Callable[[], tuple[Partitioner, None, bool]]]] = {
    "round-robin": lambda: (RoundRobin(), None, False),
    "random": lambda: (RandomPartitioner(), None, False),
    "consistent": lambda: (murmur2_or(RandomPartitioner()), None, True),
}


def _any(partitions: int, available: Sequence[int]) -> int:
    return random.choice(available) if available else random.randrange(partitions)
