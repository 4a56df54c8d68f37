from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.store import ADDRESS, is_zookeeper_asked_for
from tests.support.zookeeper import ZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A server for all tests that do not harm it; each takes a chroot of its own."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A server for one test, to be paused and killed."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session", autouse=True)
def _chosen_store(request: pytest.FixtureRequest) -> None:
    """With APPLIANCE_STORE=zookeeper every appliance of the run keeps its tree there."""
    if is_zookeeper_asked_for():
        server = request.getfixturevalue("zookeeper")
        assert isinstance(server, ZooKeeper)
        os.environ[ADDRESS] = server.address
