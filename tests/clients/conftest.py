"""One broker for the whole room; the strict one is started by the first scenario that wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.driver_process import end_idle_drivers
from tests.clients.adapters.native import tell
from tests.clients.play import Stage
from tests.native.transports import broker_on_all
from tests.support.broker import Broker


@pytest.fixture(scope="session", autouse=True)
def drivers() -> Iterator[None]:
    """Driver processes of other languages serve one client after the other, and end with the room."""
    yield
    end_idle_drivers()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with its shipped settings, on all transports that it has."""
    with broker_on_all(tmp_path_factory.mktemp("broker")) as (started, places):
        tell(places)
        yield started


@pytest.fixture(scope="session")
def strict_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Starts a broker that creates no topics by itself, once, and tells its address."""
    with ExitStack() as stack:
        started: list[Broker] = []

        def address() -> str:
            if not started:
                settings = {"auto.create.topics.enable": False}
                strict = broker_on_all(tmp_path_factory.mktemp("strict"), settings)
                broker, places = stack.enter_context(strict)
                tell(places)
                started.append(broker)
            return started[0].address

        yield address


@pytest.fixture(scope="session")
def stage(broker: Broker, strict_address: Callable[[], str]) -> Stage:
    """Where the scenarios play."""
    return Stage(broker.address, strict_address, ConfluentClient(broker.address))
