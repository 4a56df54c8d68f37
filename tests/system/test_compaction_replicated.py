"""Each replica of a compacted topic is compacted for itself, and whoever leads next has every key's last value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

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
