"""kafka-python as a member of a classic group."""

from __future__ import annotations

from contextlib import suppress

from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError

from tests.clients.members.arguments import HEARTBEAT_MS, Leaving, arguments, processed


def main() -> None:
    given, leaving = arguments(), Leaving()
    consumer = KafkaConsumer(
        given.topic,
        bootstrap_servers=given.address,
        group_id=given.group,
        client_id=given.client_id,
        session_timeout_ms=given.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=50,
    )
    while not leaving.asked:
        batches = consumer.poll(timeout_ms=100)
        for partition, messages in batches.items():
            for message in messages:
                processed(partition.partition, message.offset)
        if batches:
            with suppress(KafkaError):  # a rebalance came between: whoever has the partition now goes on
                consumer.commit()
    consumer.close()


main()
