"""Topics with three replicas: acks=all, the death of who leads, the return of who was away."""

import os
import signal
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.cases.one_record import NOT_FOR_MOCK, times
from benchmarks.load import generators
from benchmarks.machine import GIB
from benchmarks.void import Void

UNDER_SLOTS = frozenset({"slots"})
KILLED = 1
"""The slot that dies: not the one whose JVM is Kafka's controller as well."""
PATIENCE_SECONDS = 180.0
CATCH_UP_PARTITIONS = 6
EAGER_CLIENT: dict[str, str | int | bool] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 0,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 20,
    "reconnect.backoff.ms": 10,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "log_level": 0,
}
"""It asks again at once, so that what is measured is the broker."""


def _latency(bench: Bench) -> Figures:
    topic = bench.topic()
    asked = generators.client_latency(bench.broker.address, topic, seconds=bench.scale.seconds, acks="all")
    bench.check_records(topic, asked.acked_records)
    return times(asked)


def _failover(partitions: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        broker = bench.broker
        _create_led_by(broker.address, "led", partitions, slot=KILLED)
        producer = Producer({**EAGER_CLIENT, "bootstrap.servers": broker.address})
        _one_to_each(producer, "led", partitions)
        killed_at_ns = time.monotonic_ns()
        for pid in broker.slot_pids(KILLED):
            os.kill(pid, signal.SIGKILL)
        acked_at_ns = _one_to_each(producer, "led", partitions)
        if held := broker.end_offset("led", partitions) - 2 * partitions:
            raise Void(f"{held} records too many are in the log")
        return {
            "all_acked_ms": (max(acked_at_ns) - killed_at_ns) / 1e6,
            "first_acked_ms": (min(acked_at_ns) - killed_at_ns) / 1e6,
        }

    return run


def _catch_up(bench: Bench) -> Figures:
    """What is written while a slot is stopped, and how long it takes the slot to have it once it serves again."""
    broker, address = bench.broker, bench.broker.address
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    node = sorted(admin.list_topics(timeout=30).brokers)[KILLED]
    topic = bench.topic(CATCH_UP_PARTITIONS)
    records = bench.scale.backlog_bytes // 1024
    broker.stop_slot(KILLED)
    _await(lambda: all(node not in isr for isr in _in_sync(admin, topic)), "the stopped slot is out of sync")
    generators.stream_in(address, topic, records=records, record_bytes=1024, partition=None)
    bench.check_records(topic, records, partitions=CATCH_UP_PARTITIONS)
    ordered_at = time.monotonic()
    broker.start_slot(KILLED)
    _await(lambda: node in admin.list_topics(timeout=30).brokers, "the slot serves")
    live_at = time.monotonic()
    _await(lambda: all(node in isr for isr in _in_sync(admin, topic)), "the slot is in sync")
    in_sync_at = time.monotonic()
    bench.check_records(topic, records, partitions=CATCH_UP_PARTITIONS)
    return {
        "mb_s": records * 1024 / 1e6 / (in_sync_at - live_at),
        "live_seconds": live_at - ordered_at,
        "in_sync_seconds": in_sync_at - ordered_at,
    }


def _in_sync(admin: AdminClient, topic: str) -> list[list[int]]:
    """The in-sync replicas of each partition, as Metadata says now."""
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [each.isrs for each in found.values()]


def _await(holds: Callable[[], bool], what: str) -> None:
    """Raises Void when it does not come to hold."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise Void(f"not within {PATIENCE_SECONDS:g} s: {what}")
        time.sleep(0.02)


def _create_led_by(address: str, topic: str, partitions: int, *, slot: int) -> None:
    """All replicas on all brokers, each partition led by the broker of that place. Raises Void."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    brokers = sorted(admin.list_topics(timeout=30).brokers)
    order = brokers[slot:] + brokers[:slot]
    wanted = NewTopic(topic, num_partitions=partitions, replica_assignment=[order] * partitions)
    try:
        admin.create_topics([wanted], operation_timeout=30)[topic].result(60)
    except (KafkaException, TimeoutError) as error:
        raise Void(f"{topic} was not created: {error}") from error


def _one_to_each(producer: Producer, topic: str, partitions: int) -> list[int]:
    """One record to each partition; when each was acknowledged, monotonic ns. Raises Void."""
    acked: list[int] = []
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is None:
            acked.append(time.monotonic_ns())
        else:
            failed.append(str(error))

    for partition in range(partitions):
        producer.produce(topic, b"x" * 100, partition=partition, on_delivery=delivered)
    producer.flush(PATIENCE_SECONDS)
    if failed or len(acked) != partitions:
        raise Void(f"{len(acked)} of {partitions} partitions acknowledged a record; {failed[:1]}")
    return acked


CASES = (
    Case(
        "latency_client_all",
        "one 100 B record at a time, acks=all, linger 0, through librdkafka, cores kept awake",
        _latency,
        not_for=NOT_FOR_MOCK,
        settings=UNDER_SLOTS,
        awake=True,
    ),
    *(
        Case(
            f"failover_{partitions}",
            f"kill -9 of the slot that leads {partitions}, until each has acknowledged the next record, acks=all",
            _failover(partitions),
            not_for=NOT_FOR_MOCK,
            settings=UNDER_SLOTS,
            rounds=1,
            by_name=partitions != 100,
            own=True,
        )
        for partitions in (1, 100, 1000)
    ),
    Case(
        "catch_up",
        "a slot is stopped, 1 GiB of 1 KiB records goes to six partitions, it starts again and comes in sync",
        _catch_up,
        not_for=NOT_FOR_MOCK,
        settings=UNDER_SLOTS,
        rounds=1,
        by_name=True,
        own=True,
        lends_bytes=4 * GIB,
    ),
)
