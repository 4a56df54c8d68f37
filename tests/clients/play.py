"""The stage a scenario plays on, and what it may ask while it does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import Client, RefusedError
from tests.support.raw_fetch import is_served

_numbers: Iterator[int] = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where scenarios play: a broker that creates topics by itself, and one that does not."""

    address: str
    strict_address: Callable[[], str]
    witness: ConfluentClient


class Play:
    """One scenario under way: the client under judgement, the stage, and a topic name of its own."""

    def __init__(self, client: Client, stage: Stage, name: str) -> None:
        self.client = client
        self.stage = stage
        self.witness = stage.witness
        self.topic = f"{client.name}-{name}-{next(_numbers)}"

    def create(self, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """The witness creates the scenario's topic and waits until its leaders serve it.

        Apache Kafka answers CreateTopics before they do, and an idempotent Java producer that meets that gap can
        retry for two minutes.
        """
        self.witness.create_topic(self.topic, partitions, settings=settings)
        assert within(20, lambda: is_served(self.stage.address, self.topic, partitions))
        return self.topic


@contextmanager
def refused_with(*codes: int) -> Iterator[None]:
    """The block must end in a refusal with one of these codes."""
    with pytest.raises(RefusedError) as caught:
        yield
    assert caught.value.code in codes, str(caught.value)


def within(timeout_s: float, holds: Callable[[], bool]) -> bool:
    """Asks again until it holds or the time is over; for what a broker tells other clients a moment later."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)  # metadata spreads without an event that a client could wait for
    return True
