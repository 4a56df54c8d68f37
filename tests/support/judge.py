"""Which broker the tests run against: the appliance, or with APPLIANCE_JUDGE=kafka the judge of the tests.

APPLIANCE_SLOTS=3 starts the appliance with three slots, and every topic of the client tests has a replica on each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.broker import Appliance, Broker

JUDGE: Final = os.environ.get("APPLIANCE_JUDGE", "appliance")
SLOTS: Final = int(os.environ.get("APPLIANCE_SLOTS") or "1")
REPLICAS: Final = min(3, SLOTS)
"""The replication factor of what client tests create."""

ENDS_AT_ONCE: Final[Mapping[str, object]] = (
    {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200} if JUDGE == "kafka" else {}
)
"""Kafka looks for transactions whose time is over every ten seconds, the appliance has a timer for each."""

QUICK_GROUPS: Final[Mapping[str, object]] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
}
"""Settings for a broker whose groups need not wait: members of the consumer protocol hear of each other sooner."""


def make_broker(data_dir: Path, settings: Mapping[str, object] | None = None) -> Broker:
    """A broker of the chosen kind, not yet started."""
    if JUDGE == "kafka":
        from tests.support.apache_kafka import ApacheKafka

        return ApacheKafka(data_dir, settings=settings)
    assert JUDGE == "appliance", f"APPLIANCE_JUDGE is {JUDGE!r}: appliance or kafka"
    return Appliance(data_dir, slots=SLOTS, settings=settings)


@contextmanager
def running_broker(data_dir: Path, settings: Mapping[str, object] | None = None) -> Iterator[Broker]:
    """A started broker; its stop is checked."""
    broker = make_broker(data_dir, settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
