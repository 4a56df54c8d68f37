"""The stores that must pass the conformance suite. A new implementation is one more line in STORES."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.clock import SystemClock
from appliance.control.store.embedded_store import EmbeddedStore
from appliance.control.store.metadata_store import MetadataStore, WatchEvent

OpenStore = Callable[[], MetadataStore]


def open_embedded(directory: Path) -> MetadataStore:
    return EmbeddedStore(directory, SystemClock())


STORES: dict[str, Callable[[Path], MetadataStore]] = {"embedded": open_embedded}


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens sessions with one and the same store; closes them all at the end."""
    opened: list[MetadataStore] = []

    def one_more() -> MetadataStore:
        opened.append(STORES[request.param](tmp_path))
        return opened[-1]

    yield one_more
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> MetadataStore:
    return open_store()


def wait_for_events(store: MetadataStore, *, timeout_ms: int = 5_000) -> list[WatchEvent]:
    """What the store tells when its descriptor says so; empty when it said nothing in time."""
    poll = select.poll()
    poll.register(store.fileno(), select.POLLIN)
    while poll.poll(timeout_ms):
        if events := store.events():
            return events
    return []
