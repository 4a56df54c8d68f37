"""Delayed records are looked up and cancelled by their id: from any client, and with the command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from appliance.cli.topic_client import ClientReader
from tests.support.broker import Appliance
from tests.system.delayed import PARTITIONS, PATIENCE_S, consumed, counter, create, refusal_of, started
from tests.system.raw import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = started(tmp_path_factory.mktemp("delayed") / "data")
    yield made
    made.stop()


Headers = list[tuple[str, str | bytes | None]]


def asked(broker: Appliance, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `appliance delayed`."""
    return subprocess.run(
        [sys.executable, "-m", "appliance", "delayed", *arguments, "--bootstrap", broker.address],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def run(broker: Appliance, *arguments: str, code: int = 0) -> str:
    """Run `appliance delayed`; return its standard output."""
    done = asked(broker, *arguments)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_what_was_cancelled_is_not_delivered_and_what_came_later_is(broker: Appliance) -> None:
    create(broker, "cancelled")
    client = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    for partition in range(PARTITIONS):
        for name, value in ((b"1", b"a"), (b"2", b"b"), (b"1", b"c")):
            headers: Headers = [("delivery.delay", b"2000"), ("delivery.id", name)]
            client.produce("cancelled", value, partition=partition, headers=headers)
        client.produce("cancelled", partition=partition, headers=[("delivery.cancel", b"1")])
        headers = [("delivery.delay", b"1000"), ("delivery.id", b"1")]
        client.produce("cancelled", b"later", partition=partition, headers=headers)
    client.flush(PATIENCE_S)  # all of a partition is in one batch
    found = consumed(broker, "cancelled", 2 * PARTITIONS, more_s=1.5)
    assert sorted(each.value() for each in found) == [b"b"] * PARTITIONS + [b"later"] * PARTITIONS
    assert dict(found[0].headers())["delivery.id"] == b"1"
    assert counter(broker, "cancelled_records") == 2 * PARTITIONS


def test_a_kafka_python_program_cancels_by_the_key_of_the_record(broker: Appliance) -> None:
    create(broker, "by-key")
    producer = KafkaProducer(bootstrap_servers=broker.address)
    for key in (b"anna", b"otto"):
        headers = [("delivery.delay", b"900"), ("delivery.id", b"reminder-" + key)]
        producer.send("by-key", key, key=key, headers=headers).get(PATIENCE_S)
    producer.send("by-key", key=b"anna", headers=[("delivery.cancel", b"reminder-anna")]).get(PATIENCE_S)
    producer.close()
    assert [each.value() for each in consumed(broker, "by-key", 1, more_s=1.5)] == [b"otto"]


def test_a_kill_of_the_services_process_forgets_no_cancellation(broker: Appliance) -> None:
    create(broker, "killed")
    client = Producer({"bootstrap.servers": broker.address})
    for number in range(20):
        headers: Headers = [("delivery.delay", b"2000"), ("delivery.id", b"%d" % number)]
        client.produce("killed", b"%d" % number, partition=number % PARTITIONS, headers=headers)
    client.flush(PATIENCE_S)
    for number in range(0, 20, 2):
        client.produce("killed", partition=0, headers=[("delivery.cancel", b"%d" % number)])
        if number == 10:
            client.flush(PATIENCE_S)
            broker.kill_role("services")
    client.flush(PATIENCE_S)
    found = consumed(broker, "killed", 10, more_s=1.5)
    assert sorted(int(each.value()) for each in found) == list(range(1, 20, 2))


@pytest.mark.parametrize("name", [b"", b"x" * 256])
def test_an_id_that_is_none_is_refused(broker: Appliance, name: bytes) -> None:
    create(broker, f"refused-{len(name)}")
    assert refusal_of(broker, f"refused-{len(name)}", [("delivery.cancel", name)]).code() == (
        KafkaError.INVALID_RECORD
    )


def test_the_command_lists_shows_and_cancels(broker: Appliance) -> None:
    create(broker, "seen")
    client = Producer({"bootstrap.servers": broker.address})
    due_ms = int(time.time() * 1000) + 60_000
    for number in range(5):
        headers: Headers = [("delivery.at", b"%d" % (due_ms - number)), ("delivery.id", b"n%d" % number)]
        client.produce("seen", b"%d" % number, b"k", partition=number % PARTITIONS, headers=headers)
    client.flush(PATIENCE_S)
    told = json.loads(run(broker, "list", "seen", "--limit", "2", "--json"))
    assert (told["waiting"], [each["id"] for each in told["records"]]) == (5, ["n4", "n3"])
    (shown,) = json.loads(run(broker, "show", "seen", "n2", "--json"))
    assert (shown["partition"], shown["offset"], shown["due_ms"]) == (0, 1, due_ms - 2)
    assert (shown["key"], shown["value_bytes"]) == ("k", 1)
    assert "n2" in run(broker, "show", "seen", "n2")
    assert len(json.loads(run(broker, "cancel", "seen", "n2", "--yes", "--json"))) == PARTITIONS
    assert json.loads(run(broker, "show", "seen", "n2", "--json", code=1)) == []
    run(broker, "cancel", "seen", "n3", code=2)  # nobody can be asked
    assert json.loads(run(broker, "list", "seen", "--json"))["waiting"] == 4
    wait_until(lambda: json.loads(run(broker, "list", "--json"))["waiting"] == 4, "others are delivered")


def test_the_command_finds_exact_records_by_the_index(broker: Appliance) -> None:
    create(broker, "exact", delivery_delay_mode="exact")
    client = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    count, due_ms = 24_000, int(time.time() * 1000) + 600_000
    for number in range(count):
        at = due_ms + number * 7_919 % count
        headers: Headers = [("delivery.at", b"%d" % at), ("delivery.id", b"x%d" % number)]
        client.produce("exact", b"v", partition=0, headers=headers)
    client.produce("exact", partition=0, headers=[("delivery.cancel", b"x0")])
    client.flush(PATIENCE_S)
    directory = broker.data_dir / "delayed-index"
    wait_until(lambda: any(directory.glob("*.tail")), "what waits is in a file")

    def finds(*more: str) -> str:
        done = asked(broker, "show", "exact", "x77", "--json", *more)
        assert done.returncode == 0, done.stderr
        (shown,) = json.loads(done.stdout)
        assert (shown["id"], shown["due_ms"]) == ("x77", due_ms + 77 * 7_919 % count)
        done = asked(broker, "list", "exact", "--limit", "3", "--json", *more)
        told = json.loads(done.stdout)
        assert (told["waiting"], told["waiting_is_exact"]) == (count - 1, True)
        assert [each["due_ms"] - due_ms for each in told["records"]] == [1, 2, 3]
        return done.stderr

    wait_until(lambda: finds() == "", "all but a few are in a file")
    said = finds("--data-dir", str(directory))  # not the data directory
    assert f"{count} records with exact delays were read from the topics: there is no index" in said


def test_the_command_cancels_nothing_in_a_topic_without_delayed_delivery(broker: Appliance) -> None:
    create(broker, "plain", delivery_delay_enable="false")
    run(broker, "cancel", "plain", "x", "--yes", code=1)
    run(broker, "cancel", "nowhere", "x", "--yes", code=1)
    run(broker, "list", "nowhere", code=1)
    run(broker, "show", "plain", "", code=2)


def test_a_reader_goes_on_at_a_log_start_that_moves_before_it_reads(broker: Appliance) -> None:
    create(broker, "moves", delivery_delay_enable="false")
    client = Producer({"bootstrap.servers": broker.address})
    for number in range(20):
        client.produce("moves", b"%d" % number, partition=0)
    client.flush(PATIENCE_S)
    with closing(ClientReader(broker.address)) as reader:
        place = "moves", 0
        starts, ends = reader.starts([place]), reader.ends([place], read_committed=True)
        admin = AdminClient({"bootstrap.servers": broker.address})
        for future in admin.delete_records([TopicPartition(*place, 12)]).values():
            future.result(PATIENCE_S)
        assert [each.offset for each in reader.records(starts, ends)] == list(range(12, 20))
        assert [each.offset for each in reader.records_at({place: [3, 13, 15, 99]})] == [13, 15]
        assert [each.offset for each in reader.records_at({place: [3, 7]})] == []
