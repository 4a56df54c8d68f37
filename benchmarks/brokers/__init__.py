"""What can be measured: one file a broker, all with the face of `brokers.broker.Broker`."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.brokers.appliance import Appliance
from benchmarks.brokers.broker import Broker
from benchmarks.brokers.builds import Kind
from benchmarks.brokers.kafka import Kafka
from benchmarks.brokers.mock import Mock
from benchmarks.brokers.setting import Setting

MAKERS: dict[str, Callable[[Path, Setting], Broker]] = {
    "appliance": Appliance,
    "pure": lambda data_dir, setting: Appliance(data_dir, setting, kind=Kind.PURE),
    "mock": Mock,
    "kafka": Kafka,
}
"""Name → a broker not yet started, with an empty data directory, under a setting. Raises Void when it cannot be had."""
