"""A real broker for tests: in memory, on a free port, gone when the test ends (docs/testing-with-it.md).

    with Broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

pytest users have the fixture `kafka_broker` as soon as the appliance is installed (plugin.py). pytest loads this
package in every run, so what it exports is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from appliance.testing.broker import Broker, BrokerFailed, BrokerProcess
    from appliance.testing.topics import Topics

__all__ = ["Broker", "BrokerFailed", "BrokerProcess", "Topics"]

_ROOMS = {"Broker": "broker", "BrokerFailed": "broker", "BrokerProcess": "broker", "Topics": "topics"}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
