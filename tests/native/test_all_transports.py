"""What holds on every transport beside the suite of `test_faces`: columns, and the broker's permissions."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from appliance.protocol.errors import ErrorCode
from appliance_client import Admin, Consumer, Producer, TopicPartition
from appliance_client.arrow import read_arrow
from appliance_client.errors import BrokerError, ClientError
from tests.native.transports import TRANSPORTS, served_on_all
from tests.support.judge import JUDGE

PATIENCE_S = 60.0
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_numbers = count(1)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with served_on_all(tmp_path_factory.mktemp("a"), {"group.initial.rebalance.delay.ms": 0}) as served:
        yield served


@pytest.fixture(params=TRANSPORTS)
def address(request: pytest.FixtureRequest, places: dict[str, str]) -> str:
    return places[request.param]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_columns_go_in_and_out_on_every_transport(address: str, codec: str) -> None:
    """With transactions, of which each other is aborted, and groups."""
    topic = f"columns-{next(_numbers)}"
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(topic, 3)
    options: dict[str, Any] = {"compression_type": codec, "batch_size": 20_000}
    wanted = []
    with Producer(bootstrap_servers=address, transactional_id=topic, **options) as producer:
        producer.init_transactions()
        for turn in range(6):
            values = [f"{turn} {number} ".ljust(100, "x").encode() for number in range(1_000)]
            table = pa.table({"key": [str(number) for number in range(1_000)], "value": values})
            producer.begin_transaction()
            producer.send_arrow(topic, table)
            if turn % 2:
                producer.flush(PATIENCE_S)
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                wanted += values
    found = read_arrow(topic, bootstrap_servers=address, isolation_level="read_committed")
    assert sorted(found["value"].to_pylist()) == sorted(wanted)
    assert read_arrow(topic, bootstrap_servers=address).num_rows == 6_000
    polled: list[bytes] = []
    with Consumer(
        topic,
        bootstrap_servers=address,
        group_id=topic,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(polled) < len(wanted):
            assert time.monotonic() < deadline_s
            polled += consumer.poll_arrow(1_000, 700)["value"].to_pylist()
    assert sorted(polled) == sorted(wanted)


def refusal(address: str, topic: str, *, reads: bool) -> int:
    """The code of the error that a client meets; 0 where it meets none."""
    try:
        if reads:
            with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                deadline_s = time.monotonic() + PATIENCE_S
                while not consumer.poll(500):
                    assert time.monotonic() < deadline_s
        else:
            with Producer(bootstrap_servers=address, max_block_ms=20_000) as producer:
                producer.send(topic, b"x", partition=0).get(PATIENCE_S)
    except BrokerError as error:
        return error.code
    return 0


@pytest.mark.skipif(JUDGE == "kafka", reason="Apache Kafka serves TCP alone")
def test_acls_count_on_sockets_and_lanes_of_this_host(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The kernel says who a client of this host is; by TCP without TLS it is User:ANONYMOUS."""
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    me = f"User:{pwd.getpwuid(os.getuid()).pw_name}"
    with served_on_all(tmp_path_factory.mktemp("b"), settings) as places:
        with Admin(bootstrap_servers=places["tcp"]) as admin:
            for name in ("open", "closed", "read-only"):
                admin.create_topic(name, 1)
        for name in ("open", "closed", "read-only"):
            assert refusal(places["tcp"], name, reads=False) == 0
        for transport in ("zmq+ipc", "shm"):
            for reads in (False, True):
                found = refusal(places[transport], "open", reads=reads)
                assert found == ErrorCode.TOPIC_AUTHORIZATION_FAILED, (transport, reads)
        rules = [("open", AclOperation.WRITE), ("open", AclOperation.READ), ("read-only", AclOperation.READ)]
        bindings = [
            AclBinding(
                ResourceType.TOPIC, name, ResourcePatternType.LITERAL, me, "*", what, AclPermissionType.ALLOW
            )
            for name, what in rules
        ]
        client = AdminClient({"bootstrap.servers": places["tcp"]})
        for future in client.create_acls(bindings).values():
            future.result(30)
        denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        wanted = {"open": (0, 0), "closed": (denied, denied), "read-only": (denied, 0)}
        for transport in ("zmq+ipc", "shm"):
            seen = {
                name: tuple(refusal(places[transport], name, reads=reads) for reads in (False, True))
                for name in wanted
            }
            assert seen == wanted, transport


def test_an_address_without_a_broker_is_an_error_of_the_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("c")
    for address in (f"zmq+ipc://{home}/z", f"shm://{home}", "127.0.0.1:1"):
        with pytest.raises(ClientError):
            read_arrow("t", bootstrap_servers=address, default_api_timeout_ms=1_000)
