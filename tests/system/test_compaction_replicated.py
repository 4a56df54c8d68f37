"""Each replica of a compacted topic is compacted for itself, and whoever leads next has every key's last value."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from appliance.protocol.records.batch import HEADER_BYTES
from tests.cli.command import appliance as command_line
from tests.support.broker import Appliance
from tests.system.acked_load import create, leaders
from tests.system.raw import wait_until
from tests.system.test_compaction import (
    CONFIGS,
    KEYS,
    PATIENCE_S,
    SETTINGS,
    TOPIC,
    Load,
    checkpointed,
    compacted_to,
    read_back,
    set_config,
)

SLOTS = 3
RECORDS = 20_000  # of 200 bytes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data", slots=SLOTS, settings=SETTINGS)
    appliance.start()
    create(
        appliance,
        TOPIC,
        1,
        replicas=SLOTS,
        **{key.replace(".", "_"): value for key, value in CONFIGS.items()},
    )
    yield appliance
    appliance.stop()


def all_compacted_to(broker: Appliance) -> int:
    """The offset up to which every slot's copy is compacted."""
    return min(compacted_to(broker, broker.data_dir / f"slot-{slot}") for slot in range(SLOTS))


def test_followers_copies_are_compacted_and_lose_nothing_whoever_is_killed(broker: Appliance) -> None:
    load = Load(broker, "none")
    load.write(RECORDS)
    leader = leaders(broker, TOPIC)[0]
    broker.kill_role(f"replica {(leader + 1) % SLOTS}")
    broker.kill_role("cleaner")
    load.write(RECORDS)
    wait_until(lambda: all_compacted_to(broker) > RECORDS, "every copy is compacted", timeout_s=PATIENCE_S)
    for slot in range(SLOTS):
        directory = broker.data_dir / f"slot-{slot}" / f"{TOPIC}-0"
        wait_until(
            lambda directory=directory: (
                sum(path.stat().st_size for path in directory.glob("*.log")) < 4 << 20
            ),  # type: ignore[misc]
            f"slot {slot} has let go of what was compacted",
            timeout_s=PATIENCE_S,
        )
    broker.kill_role(f"ioproc {leader}.0")
    wait_until(lambda: leaders(broker, TOPIC)[0] not in (leader, -1), "another leads", timeout_s=PATIENCE_S)
    load.write(1)
    assert not load.failed
    found, count = read_back(broker)
    assert found == load.last
    assert len(found) == KEYS
    assert count < RECORDS

    def verdict() -> str:
        told = command_line("log", "verify", TOPIC, "--data-dir", broker.data_dir, "--json")
        (partition,) = json.loads(told.text)["partitions"]
        return str(partition["verdict"])

    wait_until(
        lambda: verdict() == "alike", "replicas are alike above what was compacted", timeout_s=PATIENCE_S
    )


def test_every_copy_is_compacted_when_an_open_transaction_has_ended_and_nothing_more_is_written(
    broker: Appliance,
) -> None:
    topic = "rests"
    configs = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    create(broker, topic, 1, replicas=SLOTS, **configs)
    held, others = transactional(broker, "held"), transactional(broker, "others")
    held.begin_transaction()
    write_keys(held, topic, b"held")
    for number in range(5):
        others.begin_transaction()
        write_keys(others, topic, b"%d" % number)
        others.commit_transaction(PATIENCE_S)
        time.sleep(0.15)  # the next batch begins a segment

    def compacted_up_to() -> list[int]:
        by_slot = [dict(checkpointed(broker.data_dir / f"slot-{slot}")) for slot in range(SLOTS)]
        return [offsets.get(f"{topic}-0", 0) for offsets in by_slot]

    time.sleep(1)  # all that the roll of a segment sets off has been done
    assert compacted_up_to() == [0] * SLOTS, "what follows an open transaction is not compacted"
    held.commit_transaction(PATIENCE_S)
    wait_until(lambda: min(compacted_up_to()) > KEYS_WRITTEN, "every copy is compacted", timeout_s=PATIENCE_S)
    told = [line for line in broker.output().splitlines() if f"{topic}-0: compacted" in line]
    stays = [re.search(r"(\d+) of (\d+) records stay", line) for line in told]
    assert stays
    for found in stays:
        assert found is not None
        assert int(found[1]) <= int(found[2]), "no round keeps more records than it has read"


KEYS_WRITTEN = 10


def transactional(broker: Appliance, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    return producer


def write_keys(producer: Producer, topic: str, value: bytes) -> None:
    for number in range(KEYS_WRITTEN):
        producer.produce(topic, value, b"key-%d" % number)
    assert producer.flush(PATIENCE_S) == 0


def test_a_topic_that_is_compacted_no_more_is_repaired_and_loses_nothing(broker: Appliance) -> None:
    """The cleaner forgets it, so no checkpoint tells of the holes in its log any more."""
    load = Load(broker, "none")
    load.write(RECORDS)
    wait_until(lambda: all_compacted_to(broker) > 0, "every copy is compacted", timeout_s=PATIENCE_S)
    set_config(broker, "cleanup.policy", "delete")
    wait_until(lambda: all_compacted_to(broker) == 0, "the cleaner has forgotten it", timeout_s=PATIENCE_S)
    assert not load.failed
    broker.stop()
    assert repaired(broker) == []
    segments = (broker.data_dir / "slot-1" / f"{TOPIC}-0").glob("*.log")
    oldest = min(path for path in segments if path.stat().st_size)
    content = bytearray(oldest.read_bytes())
    content[HEADER_BYTES + 10] ^= 1
    oldest.write_bytes(content)
    (repair,) = repaired(broker)
    assert (repair["slot"], repair["done"]) == (1, True)
    assert repaired(broker) == []
    broker.start()
    found, _ = read_back(broker)
    assert found == load.last


def repaired(broker: Appliance) -> list[dict[str, object]]:
    told = command_line("log", "verify", TOPIC, "--repair", "--data-dir", broker.data_dir, "--json")
    return list(json.loads(told.succeeded().output)["repairs"])
