"""Message traces through real clients and the command line. See docs/trace.md."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance_client import Consumer as NativeConsumer
from appliance_client import Producer as NativeProducer
from appliance_client.tracing import TraceConsumer, TraceProducer
from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.support.otlp_collector import OtlpCollector
from tests.system.test_message_audit import PATIENCE_S, kill

PARENT: Final = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpCollector]:
    made = OtlpCollector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, collector: OtlpCollector) -> Iterator[Appliance]:
    made = Appliance(
        tmp_path_factory.mktemp("trace") / "data",
        settings={"services.processes": 1, "trace.otlp.endpoint": collector.url},
    )
    made.start()
    yield made
    made.stop()


def create(broker: Appliance, topic: str, **configs: str) -> None:
    configs = {"trace.enable": "true", **{name.replace("_", "."): each for name, each in configs.items()}}
    client = AdminClient({"bootstrap.servers": broker.address})
    client.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(PATIENCE_S)


def consumed(broker: Appliance, topic: str, wanted: int) -> None:
    client = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "billing",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    client.subscribe([topic])
    assert len(client.consume(wanted, PATIENCE_S)) == wanted
    client.commit(asynchronous=False)
    client.poll(0.3)
    client.close()


def steps(broker: Appliance, record: str, *wanted: str) -> list[dict[str, Any]]:
    """Return the steps of a record's trace once it has all that are wanted."""
    until = time.monotonic() + PATIENCE_S
    while True:
        done = appliance("trace", record, "-b", broker.address, "--json")
        found: list[dict[str, Any]] = json.loads(done.text)[0]["steps"] if done.code == 0 else []
        if {each["step"] for each in found} >= set(wanted):
            return found
        assert time.monotonic() < until, f"{wanted} did not come: {found} {done.errors}"


def test_one_query_shows_the_way_of_a_record_whatever_dies(
    broker: Appliance, collector: OtlpCollector
) -> None:
    create(broker, "orders")
    trace = "0af7651916cd43dd8448eb211c80319c"
    client = Producer({"bootstrap.servers": broker.address, "client.id": "shop", "compression.type": "zstd"})
    client.produce("orders", b"plain", b"secret-key")
    client.produce("orders", b"secret-value", headers={"traceparent": f"00-{trace}-{PARENT}-01"})
    client.produce("orders", b"unsampled", headers={"traceparent": f"00-{trace[::-1]}-{PARENT}-00"})
    client.flush(PATIENCE_S)
    steps(broker, trace, "replicated")
    shown = appliance("trace", trace, "-b", broker.address).succeeded().text
    assert "Not consumed by any group yet." in shown
    kill(broker, "services")
    consumed(broker, "orders", 3)
    kill(broker, "services")
    found = steps(broker, "orders-0-1", "fetched", "consumed")
    assert [(each["step"], each["client"] or each["group"]) for each in found] == [
        ("produced", "shop"),
        ("appended", "shop"),
        ("replicated", ""),
        ("fetched", "reader"),
        ("consumed", "billing"),
    ]
    assert {(each["topic"], each["partition"], each["offset"]) for each in found} == {("orders", 0, 1)}
    shown = appliance("trace", trace, "-b", broker.address).succeeded().text
    assert "client shop (User:ANONYMOUS)" in shown
    assert "group billing" in shown
    for other, why in (
        ("orders-0-0", "no trace"),
        (trace[::-1], "no trace"),
        ("orders", "neither a trace id"),
    ):
        done = appliance("trace", other, "-b", broker.address)
        assert done.code != 0
        assert why in done.text + done.errors
    until = time.monotonic() + PATIENCE_S
    while "settle orders" not in names_of(collector) and time.monotonic() < until:
        time.sleep(0.1)
    assert names_of(collector) >= {"publish orders", "receive orders", "settle orders"}
    raw = json.dumps(collector.requests)
    assert "secret" not in raw
    assert PARENT in raw


def names_of(collector: OtlpCollector) -> set[str]:
    return {
        span["name"]
        for _, body in list(collector.requests)
        for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    }


def test_the_ends_of_a_transaction_and_sampled_keys_are_seen(broker: Appliance) -> None:
    create(broker, "payments", trace_sample="1")
    client = Producer({"bootstrap.servers": broker.address, "transactional.id": "p"})
    client.init_transactions(PATIENCE_S)
    for ends in (client.commit_transaction, client.abort_transaction):
        client.begin_transaction()
        client.produce("payments", b"x", b"key")
        client.flush(PATIENCE_S)
        ends(PATIENCE_S)
    assert steps(broker, "payments-0-0", "committed")[0]["client"] == "rdkafka"
    steps(broker, "payments-0-2", "aborted")


def test_the_native_client_adds_its_two_ends(broker: Appliance) -> None:
    create(broker, "native")
    create(broker, "trace-reports", trace_enable="false")
    tracing = TraceProducer(one_in=2)
    with NativeProducer(bootstrap_servers=broker.address, interceptors=(tracing,)) as producer:
        sent = [producer.send("native", b"%d" % number).get(PATIENCE_S) for number in range(4)]
    assert tracing.added == 2
    with NativeProducer(bootstrap_servers=broker.address) as reports:
        interceptor = TraceConsumer(reports, group="workers", client="worker-1")
        consumer = NativeConsumer(
            "native",
            bootstrap_servers=broker.address,
            group_id="workers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            interceptors=(interceptor,),
        )
        found = 0
        until = time.monotonic() + PATIENCE_S
        while found < 4 and time.monotonic() < until:
            found += sum(map(len, consumer.poll(500).values()))
        consumer.commit()
        record = f"native-0-{sent[1].offset}"
        processed = next(each for each in steps(broker, record, "processed") if each["step"] == "processed")
        consumer.close()
    assert (processed["group"], processed["client"]) == ("workers", "worker-1")
    assert processed["since_ms"] <= processed["at_ms"]


def test_nobody_else_writes_traces(broker: Appliance) -> None:
    errors: list[KafkaError | None] = []
    client = Producer({"bootstrap.servers": broker.address})
    client.produce("__trace", b"{}", on_delivery=lambda error, _: errors.append(error))
    client.flush(PATIENCE_S)
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.TOPIC_EXCEPTION


def test_a_topic_has_a_trace_only_with_a_services_process(tmp_path: Path) -> None:
    done = appliance(
        "serve", "--data-dir", tmp_path / "d", "--set", "trace.otlp.endpoint=ftp://x", timeout_s=30
    )
    assert done.code == 2
    assert "trace.otlp.endpoint" in done.errors
