"""Records in and out through a Python client, one call a record, as an application does it.

    python python_clients.py CLIENT in|out ADDRESS TOPIC RECORDS BYTES [BATCH]

CLIENT is native, arrow, confluent, kafka_python or aiokafka. All have the same settings: acks=all, idempotent, linger
5 ms, batches of BATCH bytes (128 KiB), no compression. In: from the second call to the last acknowledgement; the first
record is acknowledged before, because librdkafka takes up to half a second until it has its producer id. Out: from the
first record to the last, `value` is taken of each. It prints JSON. `arrow` is the native client with one Arrow table in
and record batches out; its first records load its kernels and do not count.

It is run by its path, on a module path that begins with the build of the native client that is measured.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable

BATCH_BYTES = 131_072
LINGER_MS = 5
READ_AT_ONCE = 5_000
PATIENCE_SECONDS = 120.0
WARM_UP_RECORDS = 10_000
"""Of `arrow`; the number of all its records is a multiple."""


class Clock:
    """Wall and processor time of this process since `start`."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def read(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self._wall, "cpu_seconds": time.process_time() - self._cpu}


def native_in(address: str, topic: str, records: int, value: bytes) -> dict[str, float]:
    from appliance_client import Producer

    with Producer(bootstrap_servers=address, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        producer.send(topic, value).get(PATIENCE_SECONDS)
        clock = Clock()
        for _ in range(records - 1):
            last = producer.send(topic, value)
        producer.flush()
        told = clock.read()
        last.get(0)
    return {**told, "records": records - 1}


def native_out(address: str, topic: str, records: int, _value: bytes) -> dict[str, float]:
    from appliance_client import Consumer, TopicPartition

    place = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=address, max_poll_records=READ_AT_ONCE) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning()
        taken = Taken(records)
        while taken.goes_on():
            for found in consumer.poll(1000).values():
                taken.some(len(found), sum(len(each.value) for each in found))
    return taken.told()


def arrow_in(address: str, topic: str, records: int, value: bytes) -> dict[str, float]:
    import pyarrow as pa

    from appliance_client import Producer

    table = pa.table({"value": pa.array([value], pa.binary()).take(pa.array([0] * WARM_UP_RECORDS))})
    rest = records - WARM_UP_RECORDS
    whole = pa.concat_tables([table] * (rest // WARM_UP_RECORDS)).combine_chunks()
    with Producer(bootstrap_servers=address, linger_ms=LINGER_MS, batch_size=BATCH_BYTES) as producer:
        producer.send_arrow(topic, table).get(PATIENCE_SECONDS)
        clock = Clock()
        producer.send_arrow(topic, whole).get(PATIENCE_SECONDS)
        return {**clock.read(), "records": whole.num_rows}


def arrow_out(address: str, topic: str, records: int, _value: bytes) -> dict[str, float]:
    from appliance_client.arrow import read_arrow, read_arrow_batches

    read_arrow(topic, max_records=WARM_UP_RECORDS, bootstrap_servers=address)
    taken = Taken(records)
    for found in read_arrow_batches(topic, columns=("offset", "key", "value"), bootstrap_servers=address):
        taken.some(found.num_rows, found.column("value").nbytes)
    assert not taken.goes_on()
    return taken.told()


def confluent_in(address: str, topic: str, records: int, value: bytes) -> dict[str, float]:
    from confluent_kafka import Producer

    failed: list[object] = []

    def failed_with(error: object, _message: object) -> None:
        failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": failed_with,
        }
    )
    producer.produce(topic, value)
    assert not producer.flush(PATIENCE_SECONDS)
    clock = Clock()
    for _ in range(records - 1):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(PATIENCE_SECONDS)
    told = clock.read()
    assert not left, f"{left} records are not acknowledged"
    assert not failed, failed[0]
    return {**told, "records": records - 1}


def confluent_out(address: str, topic: str, records: int, _value: bytes) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            # By default it fetches nothing for a second when it is 100,000 records or 64 MB ahead.
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    taken = Taken(records)
    while taken.goes_on():
        found = consumer.consume(READ_AT_ONCE, 0.1)
        taken.some(len(found), sum(len(each.value() or b"") for each in found))
    consumer.close()
    return taken.told()


def kafka_python_in(address: str, topic: str, records: int, value: bytes) -> dict[str, float]:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=address,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        acks="all",
        enable_idempotence=True,
    )
    producer.send(topic, value).get(PATIENCE_SECONDS)
    clock = Clock()
    for _ in range(records - 1):
        last = producer.send(topic, value)
    producer.flush(PATIENCE_SECONDS)
    told = clock.read()
    last.get(0)
    producer.close()
    return {**told, "records": records - 1}


def kafka_python_out(address: str, topic: str, records: int, _value: bytes) -> dict[str, float]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=address, max_poll_records=READ_AT_ONCE)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    taken = Taken(records)
    while taken.goes_on():
        for found in consumer.poll(1000).values():
            taken.some(len(found), sum(len(each.value) for each in found))
    consumer.close()
    return taken.told()


def aiokafka_in(address: str, topic: str, records: int, value: bytes) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    async def run() -> dict[str, float]:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
            acks="all",
            enable_idempotence=True,
        )
        await producer.start()
        await producer.send_and_wait(topic, value)
        clock = Clock()
        for _ in range(records - 1):
            last = await producer.send(topic, value)
        await producer.flush()
        told = clock.read()
        assert last.done()
        assert not last.exception()
        await producer.stop()
        return {**told, "records": records - 1}

    return asyncio.run(run())


def aiokafka_out(address: str, topic: str, records: int, _value: bytes) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> dict[str, float]:
        consumer = AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        taken = Taken(records)
        while taken.goes_on():
            polled = await consumer.getmany(timeout_ms=1000, max_records=READ_AT_ONCE)
            for found in polled.values():
                taken.some(len(found), sum(len(each.value) for each in found))
        await consumer.stop()
        return taken.told()

    return asyncio.run(run())


class Taken:
    """Counts what is read. The clock starts with the first records, which are not counted."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._taken = 0
        self._first = 0
        self._clock = Clock()
        self._until = time.monotonic() + PATIENCE_SECONDS
        self.value_bytes = 0

    def goes_on(self) -> bool:
        assert time.monotonic() < self._until, f"{self._taken} of {self._records} records were read"
        return self._taken < self._records

    def some(self, records: int, value_bytes: int) -> None:
        if records and not self._taken:
            self._first = records
            self._clock.start()
        self._taken += records
        self.value_bytes += value_bytes

    def told(self) -> dict[str, float]:
        return {**self._clock.read(), "records": self._taken - self._first, "value_bytes": self.value_bytes}


CLIENTS = ("native", "confluent", "kafka_python", "aiokafka")
ARROW = "arrow"


def main() -> None:
    global BATCH_BYTES  # noqa: PLW0603 (one run has one setting)
    client, way, address, topic, records, size, *rest = sys.argv[1:]
    assert client in {*CLIENTS, ARROW}
    assert way in {"in", "out"}
    if rest:
        BATCH_BYTES = int(rest[0])
    run: Callable[[str, str, int, bytes], dict[str, float]] = globals()[f"{client}_{way}"]
    told = run(address, topic, int(records), b"x" * int(size))
    print(json.dumps({"records": int(records), **told}))


if __name__ == "__main__":
    main()
