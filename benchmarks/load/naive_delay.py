"""A delay service as a user writes it beside Kafka: `python naive_delay.py ADDRESS INBOX OUTBOX PARTITIONS`.

It reads records from INBOX, keeps them in memory, and sends each to OUTBOX at the time of its header `delivery.at`. It
runs until it is killed. What it holds is lost then, unless it reads everything again; what it has sent is sent again.
"""

import heapq
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

POLL_SECONDS = 0.005
AT_ONCE = 5_000


def main(address: str, inbox: str, outbox: str, partitions: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "naive-delay", "fetch.wait.max.ms": 5})
    consumer.assign([TopicPartition(inbox, each, 0) for each in range(partitions)])
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    )
    waiting: list[tuple[int, int, int, bytes]] = []
    count = 0
    while True:
        for message in consumer.consume(AT_ONCE, POLL_SECONDS):
            headers = message.headers()
            if message.error() is None and headers:
                count += 1
                due_ms = int(dict(headers)["delivery.at"] or 0)
                heapq.heappush(
                    waiting, (due_ms, count, message.partition() or 0, bytes(message.value() or b""))
                )
        now_ms = time.time() * 1000
        while waiting and waiting[0][0] <= now_ms:
            _, _, partition, value = heapq.heappop(waiting)
            while True:
                try:
                    producer.produce(outbox, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
