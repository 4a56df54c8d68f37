"""Delayed records through librdkafka, in and out.

    python -m benchmarks.load.delayed late ADDRESS INBOX OUTBOX --records N --rate R --lead SECONDS
    python -m benchmarks.load.delayed send ADDRESS INBOX OUTBOX --records N --lead SECONDS
    python -m benchmarks.load.delayed read ADDRESS INBOX OUTBOX --records N

`late` sends N records to INBOX, R of which are due in each second, the first one after LEAD seconds. Another process
reads them from OUTBOX: how late a record is counts from when it was due to when this process has it. `send` sends N
records that are all due after LEAD seconds; `read` reads N records. It prints JSON.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator

from confluent_kafka import Consumer, Producer, TopicPartition

VALUE_BYTES = 100
AT_ONCE = 10_000
PATIENCE_SECONDS = 300.0
PARTITIONS = 4


def send(address: str, topic: str, dues_ms: Iterator[int]) -> dict[str, float]:
    """Send a record for each time; return how many a second were acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
        }
    )
    producer.list_topics(topic, 10)
    began = time.perf_counter()
    count = 0
    for due_ms in dues_ms:
        value, headers = (b"%d" % due_ms).ljust(VALUE_BYTES), [("delivery.at", b"%d" % due_ms)]
        while True:
            try:
                producer.produce(topic, value, partition=count % PARTITIONS, headers=headers)  # type: ignore[arg-type]
                break
            except BufferError:
                producer.poll(0.01)
        count += 1
    if producer.flush(PATIENCE_SECONDS):
        raise SystemExit("not all records were acknowledged")
    return {"in_records_s": count / (time.perf_counter() - began)}


def read(address: str, topic: str, records: int) -> tuple[float, list[float]]:
    """Return how many records a second came, and how late each was, in ms."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "late", "fetch.wait.max.ms": 5})
    consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    late_ms: list[float] = []
    first = last = 0.0
    until = time.perf_counter() + PATIENCE_SECONDS
    while len(late_ms) < records:
        messages = consumer.consume(AT_ONCE, 0.05)
        if not messages:
            if time.perf_counter() > until:
                raise SystemExit(f"{len(late_ms)} of {records} records came")
            continue
        now_ms, last = time.time() * 1000, time.perf_counter()
        first = first or last
        late_ms += [now_ms - int(each.value() or b"0") for each in messages if each.error() is None]
    return records / max(last - first, 1e-3), late_ms


def _reader(address: str, topic: str, records: int, to: "multiprocessing.Queue[dict[str, float]]") -> None:
    _, late_ms = read(address, topic, records)
    late_ms.sort()

    def at(share: float) -> float:
        return late_ms[min(int(len(late_ms) * share), len(late_ms) - 1)]

    to.put(
        {
            "late_p50_ms": at(0.5),
            "late_p99_ms": at(0.99),
            "late_p999_ms": at(0.999),
            "earliest_ms": late_ms[0],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("late", "send", "read"))
    parser.add_argument("address")
    parser.add_argument("inbox")
    parser.add_argument("outbox")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--lead", type=float, default=5.0)
    given = parser.parse_args()
    if given.mode == "read":
        print(json.dumps({"out_records_s": read(given.address, given.outbox, given.records)[0]}))
        return
    first_ms = (time.time() + given.lead) * 1000
    if given.mode == "send":
        print(json.dumps(send(given.address, given.inbox, (int(first_ms) for _ in range(given.records)))))
        return
    told: multiprocessing.Queue[dict[str, float]] = multiprocessing.Queue()
    words = (given.address, given.outbox, given.records, told)
    reader = multiprocessing.Process(target=_reader, args=words, daemon=True)
    reader.start()
    dues = (int(first_ms + number / given.rate * 1000) for number in range(given.records))
    figures = send(given.address, given.inbox, dues)
    figures["lead_left_s"] = first_ms / 1000 - time.time()
    print(json.dumps(figures | told.get(timeout=PATIENCE_SECONDS)))


if __name__ == "__main__":
    main()
