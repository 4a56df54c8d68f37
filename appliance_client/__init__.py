"""A Kafka client in Python: sync and asyncio over one core that does no I/O.

    from appliance_client import Producer, Consumer

Speaks to Apache Kafka and to the appliance over TCP, and to the appliance over ZeroMQ.
README.md begins with sixty seconds that work.
"""

from __future__ import annotations

from appliance_client import errors
from appliance_client.accumulator import RecordFuture
from appliance_client.admin import Admin
from appliance_client.consumer import Consumer
from appliance_client.consumer_core import RebalanceListener
from appliance_client.errors import ClientError
from appliance_client.parallel import ParallelConsumer
from appliance_client.producer import Producer, ProducerRecord
from appliance_client.values import (
    MAX_TIMESTAMP,
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TopicPartition,
)

__all__ = [
    "MAX_TIMESTAMP",
    "Admin",
    "ClientError",
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "ParallelConsumer",
    "Producer",
    "ProducerRecord",
    "RebalanceListener",
    "RecordFuture",
    "RecordMetadata",
    "TopicPartition",
    "errors",
]
