"""The stores that must pass the conformance suite."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from appliance.clock import SystemClock
from appliance.control.store.embedded_store import EmbeddedStore
from appliance.control.store.metadata_store import MetadataStore, WatchEvent
from appliance.control.store.zookeeper_store import ZooKeeperStore
from tests.support.zookeeper import ZooKeeper

SESSION_TIMEOUT_MS = 10_000

OpenStore = Callable[[], MetadataStore]


def open_embedded(directory: Path) -> MetadataStore:
    return EmbeddedStore(directory, SystemClock())


def open_zookeeper(connect: str, directory: Path) -> MetadataStore:
    return ZooKeeperStore(connect, SESSION_TIMEOUT_MS, data_dir=directory, clock=SystemClock())


STORES = ("embedded", "zookeeper")


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens sessions with one and the same store; closes them all at the end."""
    opened: list[MetadataStore] = []
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        assert isinstance(server, ZooKeeper)
        connect = f"{server.address}/{uuid4()}/tree"

    def one_more() -> MetadataStore:
        if request.param == "zookeeper":
            opened.append(open_zookeeper(connect, tmp_path))
        else:
            opened.append(open_embedded(tmp_path))
        return opened[-1]

    yield one_more
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> MetadataStore:
    return open_store()


def wait_for_events(store: MetadataStore, *, timeout_ms: int = 30_000) -> list[WatchEvent]:
    """What the store tells when its descriptor says so; empty when it said nothing in time."""
    poll = select.poll()
    poll.register(store.fileno(), select.POLLIN)
    while poll.poll(timeout_ms):
        if events := store.events():
            return events
    return []
