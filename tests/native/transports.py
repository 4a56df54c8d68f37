"""The transports that a test of the native client runs on, and one broker that serves them all.

Apache Kafka serves TCP alone. A new transport is a line in each of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.broker import Broker
from tests.support.judge import JUDGE, running_broker
from tests.support.wire import free_ports

TRANSPORTS: Final = ("tcp",) if JUDGE == "kafka" else ("tcp", "zmq+ipc", "zmq+tcp", "shm")


@contextmanager
def served_on_all(home: Path, settings: Mapping[str, object] | None = None) -> Iterator[dict[str, str]]:
    """A running broker's bootstrap addresses, by transport."""
    with broker_on_all(home, settings) as (_, places):
        yield places


@contextmanager
def broker_on_all(
    home: Path, settings: Mapping[str, object] | None = None
) -> Iterator[tuple[Broker, dict[str, str]]]:
    """A running broker and its bootstrap addresses, by transport. `home` has a short path: it is the socket's."""
    more: dict[str, object] = dict(settings or {})
    others: dict[str, str] = {}
    if JUDGE != "kafka":
        port = free_ports(3)
        listeners = {"zmq+ipc": f"ipc://{home}/z", "zmq+tcp": f"tcp://127.0.0.1:{port}"}
        more |= {
            "listeners.zeromq": list(listeners.values()),
            "zeromq.tcp.insecure": True,
            "shared.memory.lanes.max": 1000,
        }
        others = {name: f"zmq+{endpoint}" for name, endpoint in listeners.items()}
        others["shm"] = f"shm://{home}/data"
    with running_broker(home / "data", more) as broker:
        yield broker, {"tcp": broker.address, **others}
