"""Three slots of two workers: a death moves what that worker led; copies are right wherever they are opened next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.roles import owner_of
from appliance.log.file_names import CLEAN_SHUTDOWN
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import AckedLoad, create, settled
from tests.system.raw import ask, wait_until

SLOTS = 3
WORKERS = 2
PARTITIONS = 6
TOPIC = "followed"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    settings = {
        "io.workers": WORKERS,
        "replica.lag.time.max.ms": 3000,
        "auto.leader.rebalance.enable": False,
    }
    started = Appliance(tmp_path / "data", slots=SLOTS, settings=settings)
    started.start()
    yield started
    started.stop()


def led(broker: Appliance) -> tuple[UUID, dict[int, tuple[int, int]]]:
    """The topic's id; partition → its leader, and the leader epoch."""
    with WireSocket(broker.port) as connection:
        (topic,) = ask(connection, ApiKey.METADATA, MetadataRequest((TopicSelector(TOPIC),))).topics
    return topic.topic_id, {
        each.partition_index: (each.leader_id, each.leader_epoch) for each in topic.partitions
    }


def test_a_worker_s_death_moves_what_it_led_and_nothing_else(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    topic_id, before = led(broker)
    owners = {
        number: owner_of(leader, topic_id, number, workers=WORKERS) for number, (leader, _) in before.items()
    }
    victim = owners[0]
    lost = {number for number, owner in owners.items() if owner is victim}
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(500)
        broker.kill_role(str(victim))
        wait_until(
            lambda: all(led(broker)[1][number][0] not in (victim.slot, -1) for number in lost),
            "others lead what it led",
            timeout_s=30,
        )
        load.until(500)
        after = led(broker)[1]
    assert {number for number in before if after[number] != before[number]} == lost
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.slow
def test_acked_records_survive_kills_of_every_process_that_holds_copies(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        for slot in range(SLOTS):
            for victim in (f"ioproc {slot}.0", f"ioproc {slot}.1", f"replica {slot}"):
                load.until(200)
                broker.kill_role(victim)
        load.until(500)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


def test_another_number_of_workers_finds_every_copy_closed_in_good_order(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        for workers in (3, 1, WORKERS):
            load.until(300)
            broker.stop()
            for slot in range(SLOTS):
                directory = broker.data_dir / f"slot-{slot}"
                assert (directory / CLEAN_SHUTDOWN).exists(), slot
                assert not list(directory.glob(".closed-*"))
            broker.set_option("io.workers", workers)
            broker.start()
        load.until(300)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
