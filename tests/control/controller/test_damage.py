"""A store that is damaged, full or not ours: said clearly, nothing lost silently."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from appliance.channels.control_channel import NewTopic
from appliance.channels.supervision import Ready
from appliance.config import BrokerSettings
from appliance.control.store.embedded_store import DATABASE_NAME
from appliance.control.store.metadata_copy import COPY_NAME
from appliance.protocol.errors import ErrorCode
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance
from tests.control.controller.test_producer_ids import producer_id_block
from tests.control.controller.test_topics import check_served


def without_room(instance: Instance, *, more_bytes: int) -> Callable[[], None]:
    """For the child: no file of its may grow beyond what the store's are now, and a little."""
    paths = [instance.settings.data_dir / f"{DATABASE_NAME}{suffix}" for suffix in ("", "-wal")]
    largest = max((path.stat().st_size for path in paths if path.exists()), default=0)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + more_bytes, resource.RLIM_INFINITY))

    return limit


def test_full_disk_refuses_topics_and_the_books_stay_right(instance: Instance) -> None:
    instance.create("old")
    instance.stop()
    # Room for what a start writes, not for a topic of 300 partitions.
    instance.start(without_room(instance, more_bytes=200_000))
    instance.workers[0].hello()
    wide = NewTopic("wide", partitions=900)
    version = instance.images.version
    (refused,) = instance.create(wide)
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert "wide" not in instance.image.topics
    assert instance.images.version == version
    assert instance.grow("old", 900).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert instance.delete("wide")[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    resource.prlimit(instance.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert instance.create(wide)[0].error == 0
    assert instance.grow("old", 900).error == 0
    assert sorted(instance.image.topics) == ["old", "wide"]
    check_served(instance)


def test_controller_that_finds_a_full_disk_waits_for_room(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.launch(without_room(instance, more_bytes=0))
    assert not instance.speaks(timeout_ms=300)
    resource.prlimit(instance.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert instance.hear_child() == [Ready()]
    instance.start_worker()
    assert instance.create("t")[0].error == 0


def test_controller_that_waits_for_room_stops_when_told(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.launch(without_room(instance, more_bytes=0))
    assert not instance.speaks(timeout_ms=300)
    assert instance.stop() == 0


def damage(path: Path, start: int, end: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[start:end] = b"\xa5" * (end - start)
    path.write_bytes(data)
    return bytes(data)


def test_damaged_store_is_restored_from_its_copy_and_the_controller_epoch_goes_on(instance: Instance) -> None:
    instance.create("t")
    instance.stop()
    before = instance.read_store("/controller_epoch")
    damage(instance.settings.data_dir / DATABASE_NAME, 4096, 8192)
    instance.start()
    assert "t" in instance.image.topics
    check_served(instance)
    instance.stop()
    assert int(instance.read_store("/controller_epoch")) == int(before) + 1


def test_store_damaged_together_with_its_copy_is_named_and_ends_the_appliance(instance: Instance) -> None:
    instance.create("t")
    instance.stop()
    path = instance.settings.data_dir / DATABASE_NAME
    data = damage(path, 4096, 8192)
    damage(path.with_name(COPY_NAME), 10, 20)
    instance.launch()
    failed = instance.failure()
    assert failed.fatal
    assert "damaged" in failed.why
    assert str(path) in failed.why
    assert path.read_bytes() == data


def test_node_that_holds_something_else_is_named_and_ends_the_appliance(instance: Instance) -> None:
    instance.create("t")
    instance.stop()
    instance.change_store("/brokers/topics/t", b'{"partitions": 3}')
    instance.launch()
    failed = instance.failure()
    assert failed.fatal
    assert "/brokers/topics/t" in failed.why


def test_more_partitions_than_rows_is_said(new_instance: NewInstance) -> None:
    instance = new_instance()
    instance.start()
    instance.start_worker()
    instance.create(NewTopic("t", partitions=5))
    instance.stop()
    instance.close()
    smaller = new_instance(broker=BrokerSettings(max_partitions=3))
    smaller.launch()
    why = smaller.fault()
    assert "max.partitions = 3" in why
    assert "5 partitions" in why


def test_full_disk_hands_out_no_producer_id_and_none_twice(instance: Instance) -> None:
    blocks = [producer_id_block(instance)]
    instance.stop()
    instance.start(without_room(instance, more_bytes=100_000))
    while (block := producer_id_block(instance)).count:
        blocks.append(block)
    instance.kill()
    instance.start()
    blocks.append(producer_id_block(instance))
    assert all(block.count == 1000 for block in blocks)
    assert all(after.first >= before.first + 1000 for before, after in pairwise(blocks))
