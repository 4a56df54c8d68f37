"""What a consumer of librdkafka gets of a topic that has gaps: compacted, or of transactions."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tests.clients.client import Received

_PATIENCE_S = 60


def consumed_to_the_end(
    address: str, topic: str, partitions: int, *, isolation: str = "read_uncommitted"
) -> list[Received]:
    """Every record up to where the consumer is told that there is no more, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
        open_yet, found = set(range(partitions)), []
        while open_yet:
            message = consumer.poll(_PATIENCE_S)
            assert message is not None, f"nothing more of {topic}, partitions {open_yet}"
            fault, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if fault is not None:
                assert fault.code() == KafkaError._PARTITION_EOF, fault
                open_yet.discard(partition)
                continue
            found.append(
                Received(
                    partition,
                    offset,
                    message.timestamp()[1],
                    _bytes(message.key()),
                    _bytes(message.value()),
                    _headers(message),
                )
            )
    finally:
        consumer.close()
    return sorted(found, key=lambda each: (each.partition, each.offset))


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    headers = message.headers() or []
    assert isinstance(headers, list)
    return tuple((name, _bytes(value)) for name, value in headers)


def _bytes(content: str | bytes | None) -> bytes | None:
    assert not isinstance(content, str)
    return content
