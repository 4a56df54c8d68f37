"""From produce to row: a record each 50 ms, a stream that takes each micro-batch home, and the time between."""

import threading
import time
from collections.abc import Callable
from statistics import quantiles

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark.cases import Places

EVERY_S = 0.05
WARM_S = 10.0


def latencies_ms(
    spark: SparkSession, frame: DataFrame, address: str, topic: str, *, seconds: float
) -> list[float]:
    """Of each record that was produced after the first ten seconds."""
    found: list[float] = []
    begun = time.time()

    def take(batch: DataFrame, _: int) -> None:
        rows = batch.select("timestamp", "value").collect()
        now_ms = time.time() * 1000
        for row in rows:
            sent_ms = float(bytes(row.value))
            if sent_ms / 1000 - begun > WARM_S:
                found.append(now_ms - sent_ms)

    stop = threading.Event()

    def send() -> None:
        producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
        while not stop.wait(EVERY_S):
            producer.produce(topic, str(time.time() * 1000).encode())
            producer.poll(0)
        producer.flush(10)

    sender = threading.Thread(target=send, daemon=True)
    query = frame.writeStream.foreachBatch(take).trigger(processingTime="0 seconds").start()
    sender.start()
    try:
        query.awaitTermination(int(WARM_S + seconds))
    finally:
        stop.set()
        sender.join()
        query.stop()
    return found


def streams(spark: SparkSession, places: Places, topic: str) -> dict[str, Callable[[], DataFrame]]:
    """By reader."""
    return {
        "appliance": lambda: (
            spark.readStream.format("appliance")
            .option("path", str(places.data_dir))
            .option("subscribe", topic)
            .load()
        ),
        "kafka": lambda: (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", places.kafka)
            .option("subscribe", topic)
            .load()
        ),
    }


def p50_p99(found: list[float]) -> tuple[float, float]:
    """Of at least two."""
    cuts = quantiles(found, n=100)
    return cuts[49], cuts[98]
