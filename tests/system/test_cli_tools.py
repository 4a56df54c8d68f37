"""What people know from Kafka's scripts, kcat and rpk: groups, formats, expressions, performance, client settings."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cli.command import Outcome, appliance
from tests.support.broker import Broker
from tests.support.judge import QUICK_GROUPS, running_broker
from tests.support.wire import PATIENCE_S


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("tools") / "data", QUICK_GROUPS) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def tls_peer() -> Iterator[Future[tuple[list[bytes], int]]]:
    """What a peer that answers nothing hears first from a command that is to speak TLS; and the command's exit code.

    It runs beside the other tests, because librdkafka tries again for 30 s.
    """

    def first_bytes(server: socket.socket) -> list[bytes]:
        found = []
        server.settimeout(PATIENCE_S)
        for _ in range(2):  # the first one only looks whether anybody listens
            connection, _ = server.accept()
            with connection:
                connection.settimeout(PATIENCE_S)
                found.append(connection.recv(1))
        return found

    def both() -> tuple[list[bytes], int]:
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as hearing:
            heard = hearing.submit(first_bytes, server)
            address = f"127.0.0.1:{server.getsockname()[1]}"
            arguments = ("-X", "security.protocol=SSL", "-X", "socket.timeout.ms=1000")
            code = appliance("topics", "list", "-b", address, *arguments).code
            return heard.result(), code

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(both)


class Console:
    """The command, with the broker's address."""

    def __init__(self, broker: Broker) -> None:
        self.address = broker.address

    def __call__(self, *arguments: object, given: bytes = b"") -> Outcome:
        return appliance(*arguments, "-b", self.address, given=given)

    def topic(self, lines: bytes, *arguments: object) -> str:
        """A new topic of two partitions with these records."""
        name = f"topic-{uuid4().hex[:8]}"
        self("topics", "create", name, "-p", 2).succeeded()
        self("produce", name, *arguments, given=lines).succeeded()
        return name


@pytest.fixture
def run(broker: Broker) -> Console:
    return Console(broker)


def test_group_goes_on_where_it_has_committed(run: Console) -> None:
    topic, group = run.topic(b"".join(b"%d\n" % number for number in range(50))), f"g-{uuid4().hex[:8]}"
    first = run("consume", topic, "--group", group, "--count", 20).succeeded().output.split()
    rest = run("consume", topic, "-g", group).succeeded().output.split()
    assert len(first) == 20
    assert sorted(map(int, first + rest)) == list(range(50))
    assert run("consume", topic, "--group", group).succeeded().output == b""
    lag = json.loads(run("groups", "lag", group, "--json").succeeded().text)
    assert lag[0]["lag"] == 0
    run("produce", topic, given=b"50\n").succeeded()
    assert run("consume", topic, "--group", group).succeeded().output == b"50\n"
    deleted = json.loads(run("groups", "delete", group, "--yes", "--json").succeeded().text)
    assert deleted == [{"group": group, "result": "deleted", "error": None}]


def test_new_group_begins_at_the_end_where_it_is_told_so(run: Console) -> None:
    topic = run.topic(b"old\n")
    assert run("consume", topic, "-g", uuid4().hex, "--from", "end").succeeded().output == b""
    assert run("consume", topic, "-g", "g", "--from", "7").code == 2
    assert run("consume", topic, "-g", "g", "--partition", 0).code == 2


def test_format_string_prints_records_as_asked(run: Console) -> None:
    topic = run.topic(b"k=v\n", "-K", "=", "-p", 1)
    assert run("consume", topic, "-f", "%t %p %o %k %v\\n").succeeded().text == f"{topic} 1 0 k v\n"
    assert run("consume", topic, "--format", "%v;", "--encoding", "hex").succeeded().text == "76;"
    assert run("consume", topic, "--encoding", "base64").succeeded().text == "dg==\n"
    refused = run("consume", topic, "-f", "%q")
    assert (refused.code, "unknown directive '%q'" in refused.errors) == (2, True)


def test_regular_expression_reads_several_topics(run: Console) -> None:
    prefix = uuid4().hex[:8]
    for name in ("a", "b"):
        run("topics", "create", f"{prefix}-{name}").succeeded()
        run("produce", f"{prefix}-{name}", given=name.encode()).succeeded()
    told = run("consume", "-E", f"{prefix}-.*", "-f", "%t=%v\\n").succeeded().text
    assert sorted(told.splitlines()) == [f"{prefix}-a=a", f"{prefix}-b=b"]


def test_cluster_info_tells_brokers_and_topics(run: Console, broker: Broker) -> None:
    run.topic(b"x\n")
    told = json.loads(run("cluster", "info", "--json").succeeded().text)
    assert [each["address"] for each in told["brokers"]] == [broker.address]
    assert told["topics"] >= 1
    assert told["partitions"] >= 2
    assert told["unavailable_partitions"] == 0
    assert told["cluster_id"] in run("cluster", "info").succeeded().text


def test_perf_tells_rates_and_latencies(run: Console) -> None:
    topic = run.topic(b"")
    told = json.loads(run("perf", "produce", topic, "-n", 5000, "--size", 100, "--json").succeeded().text)
    assert (told["records"], told["bytes"]) == (5000, 500_000)
    assert told["records_per_second"] > 0
    latency = told["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    read = json.loads(run("perf", "consume", topic, "--json").succeeded().text)
    assert (read["records"], read["bytes"]) == (5000, 500_000)
    assert "records/s" in run("perf", "produce", topic, "-n", 100, "--rate", 1000).succeeded().text


def test_produce_tells_in_json_what_was_taken(run: Console) -> None:
    topic = run.topic(b"x\n")
    told = json.loads(run("produce", topic, "--json", given=b"a\nb\n").succeeded().text)
    assert (told["topic"], told["delivered"], told["failed"], told["error"]) == (topic, 2, 0, None)
    refused = run("produce", topic, "--json", "-K", "=", given=b"a=1\nb\n")
    assert refused.code == 1
    told = json.loads(refused.text)
    assert (told["delivered"], told["error"]) == (
        1,
        "line 2: no key separator '=' in 'b'; 1 record before this line sent",
    )


def test_input_is_one_transaction_where_an_id_is_given(run: Console) -> None:
    topic, name = run.topic(b""), f"id-{uuid4().hex[:8]}"
    transactional = ("-X", f"transactional.id={name}")
    run("produce", topic, *transactional, given=b"a\nb\n").succeeded()
    refused = run("produce", topic, *transactional, "-K", "=", given=b"k=c\nd\n")
    assert refused.code == 1
    assert "the transaction was aborted" in refused.errors
    assert sorted(run("consume", topic).succeeded().text.split()) == ["a", "b"]
    assert run("consume", topic, "-X", "isolation.level=read_uncommitted").text.count("\n") == 3


def test_offsets_at_a_time_and_those_of_a_group_are_shown_and_deleted(run: Console) -> None:
    topic, group = run.topic(b"x\n", "-p", 1), f"g-{uuid4().hex[:8]}"
    run("consume", topic, "--group", group).succeeded()
    places = json.loads(run("offsets", topic, "--at", "1h", "--json").succeeded().text)
    assert [(each["partition"], each["end"], each["at"]) for each in places] == [(0, 0, None), (1, 1, 0)]
    gone = json.loads(
        run("groups", "offset-delete", group, "--topic", f"{topic}:1", "--yes", "--json").succeeded().text
    )
    assert gone == [{"group": group, "topic": topic, "partition": 1, "result": "deleted", "error": None}]
    lag = json.loads(run("groups", "lag", "--all", "--json").succeeded().text)
    left = {each["group"]: each["partitions"] for each in lag}[group]
    assert [each["partition"] for each in left] == [0]
    unknown = run("groups", "lag", f"{group}-x")
    assert (unknown.code, "there is no group" in unknown.errors) == (1, True)
    unknown = run("groups", "reset-offsets", f"{group}-x", "--to", "beginning")
    assert (unknown.code, "has no committed offsets" in unknown.errors) == (1, True)
    assert run("groups", "lag").code == run("groups", "describe", group, "--all").code == 2


def test_requests_and_features_of_the_broker_are_listed(run: Console) -> None:
    told = json.loads(run("cluster", "apis", "--json").succeeded().text)
    assert {"key": 0, "name": "Produce", "min": 0, "max": 13} in told["apis"]
    assert {each["name"] for each in told["features"]} >= {"group.version", "transaction.version"}
    assert "Produce" in run("cluster", "apis").succeeded().text


def test_client_settings_come_from_flags_and_from_a_file(run: Console, tmp_path: Path) -> None:
    topic = run.topic(b"x\n")
    told = appliance("consume", topic, "-X", f"bootstrap.servers={run.address}", "-X", "client.id=me")
    assert told.succeeded().output == b"x\n"
    path = tmp_path / "client.properties"
    path.write_text(f"# where\nbootstrap.servers = {run.address}\n")
    assert appliance("consume", topic, "--client-config", path).succeeded().output == b"x\n"
    refused = run("consume", topic, "-X", "no.such=1")
    assert (refused.code, "no.such" in refused.errors) == (2, True)
    path.write_text("bootstrap.servers\n")
    refused = run("consume", topic, "--client-config", path)
    assert (refused.code, "line 1" in refused.errors) == (2, True)


def test_tls_is_spoken_where_it_is_asked_for(tls_peer: Future[tuple[list[bytes], int]]) -> None:
    first_bytes, code = tls_peer.result()
    assert first_bytes == [b"", b"\x16"], "a TLS handshake"
    assert code == 1
