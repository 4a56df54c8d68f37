"""Going back to an older version, as docs/upgrading.md promises it: it reads what today's version wrote, or refuses.

The older version is the state of a commit, from its sources, because no version is released yet. With the first
release, BEFORE becomes its tag.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from appliance.control.store.embedded_store import DATABASE_NAME
from appliance.control.store.metadata_copy import COPY_NAME
from appliance.log.checkpoint import read_small
from appliance.log.partition_state import PLACE_BYTES, STATE
from tests.cli.command import appliance
from tests.support.broker import Appliance, BrokerFailed

REPOSITORY: Final = Path(__file__).parents[2]
BEFORE: Final = "5d9b940673a6a5db03e6a09bb897df9077eaf5e5"
SETTINGS: Final = {"metadata.store": "embedded", "services.processes": 1}
TOPIC: Final = "numbers"
ALTERED: Final = "altered"
NEW_SETTING: Final = ("audit.enable", "true")
"""A topic setting that the older version does not know."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the older version."""
    target = tmp_path_factory.mktemp("older")
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", BEFORE, "appliance"], capture_output=True, check=False
    )
    assert archive.returncode == 0, f"git fetch --unshallow first: {archive.stderr.decode()}"
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Appliance]]:
    """Starts a version on the one data directory of the test; the version before must have been stopped."""
    brokers: list[Appliance] = []

    def start(build: Path | None = None) -> Appliance:
        broker = Appliance(tmp_path / "data", build=build, settings=SETTINGS, output_to=tmp_path / "log")
        brokers.append(broker)
        broker.start()
        return broker

    yield start
    for each in brokers:
        each.stop()


def produce(broker: Appliance, numbers: range, *, transactional_id: str | None = None) -> None:
    settings: dict[str, str | bool] = {"bootstrap.servers": broker.address, "enable.idempotence": True}
    producer = Producer(settings | ({"transactional.id": transactional_id} if transactional_id else {}))
    if transactional_id:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number in numbers:
        producer.produce(TOPIC, b"%d" % number, partition=0)
    if transactional_id:
        producer.commit_transaction(30)
    assert producer.flush(30) == 0


def consume(broker: Appliance, group: str, count: int) -> list[int]:
    """What a group reads from where it was, and commits."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    found: list[int] = []
    deadline = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def topic_settings(broker: Appliance, topic: str) -> dict[str, str]:
    """What is set for a topic, without defaults."""
    told = appliance("configs", "describe", "--topic", topic, "--json", "-b", broker.address).succeeded()
    return {each["name"]: each["value"] for each in json.loads(told.text)}


@pytest.mark.slow
def test_older_version_goes_on_with_the_data_of_todays_and_the_other_way_round(
    older: Path, started: Callable[..., Appliance]
) -> None:
    today = started()
    at = ("-b", today.address)
    for command in (
        ("topics", "create", TOPIC, "--config", "segment.bytes=1048576"),
        ("topics", "create", ALTERED),
        ("configs", "set", "--topic", TOPIC, "=".join(NEW_SETTING)),
        ("configs", "set", "--topic", ALTERED, "=".join(NEW_SETTING)),
        ("users", "add", "ann", "--password-file", "-"),
    ):
        appliance(*command, *at, given=b"a password\n").succeeded()
    produce(today, range(100))
    produce(today, range(100, 200), transactional_id="writer")
    assert consume(today, "readers", 150) == list(range(150))
    today.stop()

    before = started(older)
    assert TOPIC in AdminClient({"bootstrap.servers": before.address}).list_topics(timeout=30).topics
    users = json.loads(appliance("users", "list", "--json", "-b", before.address).succeeded().text)
    assert {each["user"] for each in users} == {"ann"}
    alter = ("configs", "set", "--topic", ALTERED, "retention.ms=86400000", "-b", before.address)
    refused = appliance(*alter)
    assert f"{NEW_SETTING[0]}: no such topic setting" in refused.errors
    unset = ("configs", "unset", "--topic", ALTERED, NEW_SETTING[0], "-b", before.address)
    appliance(*unset).succeeded()
    appliance(*alter).succeeded()
    assert consume(before, "readers", 50) == list(range(150, 200)), "its committed offset counts"
    assert consume(before, "others", 200) == list(range(200))
    produce(before, range(200, 250))
    produce(before, range(250, 300), transactional_id="writer")
    assert consume(before, "readers", 100) == list(range(200, 300))
    before.stop()

    today = started()
    assert consume(today, "afterwards", 300) == list(range(300))
    produce(today, range(300, 310), transactional_id="writer")
    assert consume(today, "readers", 10) == list(range(300, 310))
    kept, altered = topic_settings(today, TOPIC), topic_settings(today, ALTERED)
    assert kept[NEW_SETTING[0]] == NEW_SETTING[1], "a setting that the older version does not know stays"
    assert kept["segment.bytes"] == "1048576"
    assert altered["retention.ms"] == "86400000"
    assert NEW_SETTING[0] not in altered


def contents(data_dir: Path) -> dict[str, bytes]:
    """The metadata and the logs; without what each start writes (locks, the description of the run)."""
    found = [*data_dir.glob("metadata.*"), *data_dir.glob("slot-0/*"), *data_dir.glob("slot-0/*/*")]
    return {
        str(path.relative_to(data_dir)): path.read_bytes()
        for path in found
        if path.is_file() and path.name != ".lock"
    }


def test_metadata_of_a_later_format_are_refused_and_nothing_changes(
    started: Callable[..., Appliance], tmp_path: Path
) -> None:
    broker = started()
    produce(broker, range(10))
    broker.stop()
    database = tmp_path / "data" / DATABASE_NAME
    with sqlite3.connect(database) as later:
        (format_now,) = later.execute("PRAGMA user_version").fetchone()
        later.execute(f"PRAGMA user_version = {format_now + 1}")
    later.close()
    before = contents(tmp_path / "data")
    began = time.monotonic()
    with pytest.raises(
        BrokerFailed, match=rf"has format {format_now + 1}; this program knows format {format_now}"
    ):
        started()
    assert time.monotonic() - began < 30
    assert contents(tmp_path / "data") == before
    with sqlite3.connect(database) as later:
        later.execute(f"PRAGMA user_version = {format_now}")
    later.close()
    assert consume(started(), "readers", 10) == list(range(10)), "the version that knows the format goes on"


def test_copy_and_states_of_a_later_format_are_written_again(
    started: Callable[..., Appliance], tmp_path: Path
) -> None:
    """They say nothing that the metadata and the logs do not say."""
    broker = started()
    produce(broker, range(10))
    assert consume(broker, "readers", 5) == list(range(5))
    broker.stop()
    copy = tmp_path / "data" / COPY_NAME
    state = tmp_path / "data" / "slot-0" / f"{TOPIC}-0" / STATE
    original = read_small(copy) or b""
    copy.write_bytes(b"APLMETA2" + original[8:])
    words = bytearray(state.read_bytes())
    for place in (0, PLACE_BYTES):
        words[place + 8 : place + 10] = b"\x02\x00"
    state.write_bytes(words)
    broker = started()
    assert consume(broker, "readers", 5) == list(range(5, 10))
    assert consume(broker, "others", 10) == list(range(10))
    broker.stop()
    assert copy.read_bytes()[:8] == original[:8]
    assert state.read_bytes() != words
