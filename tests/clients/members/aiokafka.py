"""aiokafka as a member of a classic group."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from tests.clients.members.arguments import HEARTBEAT_MS, Leaving, arguments, processed


async def main() -> None:
    given, leaving = arguments(), Leaving()
    consumer = AIOKafkaConsumer(
        given.topic,
        bootstrap_servers=given.address,
        group_id=given.group,
        client_id=given.client_id,
        session_timeout_ms=given.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=(RangePartitionAssignor,),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    while not leaving.asked:
        batches = await consumer.getmany(timeout_ms=100, max_records=50)
        for partition, messages in batches.items():
            for message in messages:
                processed(partition.partition, message.offset)
        if batches:
            with suppress(KafkaError):  # a rebalance came between: whoever has the partition now goes on
                await consumer.commit()
    await consumer.stop()


asyncio.run(main())
