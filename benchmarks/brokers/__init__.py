"""What can be measured: one file a broker, all with the face of `brokers.broker.Broker`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.brokers.appliance import Appliance
from benchmarks.brokers.broker import Broker
from benchmarks.brokers.kafka import Kafka
from benchmarks.brokers.mock import Mock

MAKERS: dict[str, Callable[[Path, Sequence[int]], Broker]] = {
    "appliance": lambda data_dir, cpus: Appliance(data_dir, cpus=cpus),
    "mock": lambda data_dir, cpus: Mock(data_dir, cpus=cpus),
    "kafka": lambda data_dir, cpus: Kafka(data_dir, cpus=cpus),
}
"""Name → a broker not yet started, with an empty data directory and the cores it may use (none: all)."""
