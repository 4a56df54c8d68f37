"""librdkafka's mock cluster: one broker in C, in memory. No broker that keeps its word can be much faster."""

import time

from benchmarks.brokers.broker import SpawnedBroker
from benchmarks.load import build
from benchmarks.void import Void


class Mock(SpawnedBroker):
    """The mock in a process of its own; topics are created through its standard input."""

    name = "mock"
    keeps_on_disk = False
    keeps_topics = False
    can_be_halted = True

    def command(self) -> list[str]:
        return [str(build.mock_broker())]

    def on_ready(self, line: str) -> None:
        self.address = line.split()[1]

    def create_topic(self, topic: str, partitions: int) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"topic {topic} {partitions}\n")
        self.process.stdin.flush()
        until = time.monotonic() + 10.0
        while (answer := self.next_line(until)) != f"created {topic}\n":
            if answer is None:
                raise Void(f"the mock did not create topic {topic}")

    def delete_topic(self, topic: str) -> None:
        """It cannot."""

    def end_offset(self, topic: str, partitions: int) -> int:
        # Its ListOffsets is read through the consumer, which it knows, not through the admin API.
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "bench"})
        try:
            ends = (
                consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30)
                for n in range(partitions)
            )
            return sum(high for _low, high in ends)
        finally:
            consumer.close()

    def version(self) -> str:
        return build.librdkafka_version()
