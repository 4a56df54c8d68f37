"""What is adopted, what is refused by name, and that Kafka's own files stay as they are. Kafka itself: tests/system."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.control.adoption.carry_out import carry_out
from appliance.control.adoption.marker import MARKER, refuse_unfinished
from appliance.control.adoption.plan import AdoptionPlan, plan_adoption
from appliance.control.controller.takeover import cluster_id, new_id
from appliance.control.controller.topic_store import load_topics
from appliance.control.store.embedded_store import EmbeddedStore
from appliance.control.store.znode_tree import PRODUCER_ID_BLOCK
from appliance.errors import DataDirectoryInUse, HostFault, OperatorFault
from appliance.log.checkpoint import write_offsets
from appliance.log.config import LogSettings
from appliance.log.kafka_directory import CLEANER_OFFSETS, held, survey
from appliance.log.kraft_metadata import METADATA_DIRECTORY
from appliance.log.log_directory import LogDirectory
from appliance.protocol.primitives import compact_string_bytes, uuid_bytes, uvarint_bytes
from appliance.protocol.records.record import Record, encode_batch
from tests.log.batches import NOW_MS, batch_of, read_all
from tests.log.file_history import Fails, FileHistory
from tests.log.on_disk import partitions_on_disk

CLUSTER = "kafkas-own-cluster-id"
CLOCK = ManualClock(NOW_MS)
SETTINGS = LogSettings(segment_bytes=1000)
ORDERS, BILLS = UUID(int=1), UUID(int=2)


def kafka_wrote(
    root: Path, *partitions: tuple[str, int, UUID], node_id: int = 3, clean: bool = True, batches: int = 20
) -> Path:
    """A log directory as a broker leaves it; ours has the same bytes."""
    directory = LogDirectory.open(root, node_id=node_id, cluster_id=CLUSTER, clock=CLOCK)
    for topic, number, topic_id in partitions:
        log = directory.open_partition(TopicPartition(topic, number), topic_id, SETTINGS)
        for sequence in range(batches):
            batch = batch_of(
                [b"%s %d %d" % (topic.encode(), number, sequence) + bytes(100)],
                producer_id=40 + number,
                producer_epoch=0,
                base_sequence=sequence,
            )
            log.append(batch, leader_epoch=6)
        if not clean:
            log.flush()
    if clean:
        directory.close()
    else:
        directory.write_checkpoints({})
        directory.abandon()
    return root


def planned(*directories: Path, fill_gaps: bool = False, without: tuple[str, ...] = ()) -> AdoptionPlan:
    return plan_adoption(
        [survey(each) for each in directories], fill_gaps=fill_gaps, without=without, new_id=new_id
    )


def carried_out(plan: AdoptionPlan, data_dir: Path, *, copy: bool = False) -> None:
    data_dir.mkdir(exist_ok=True)
    carry_out(plan, data_dir, data_dir / "slot-0", copy=copy, clock=CLOCK, say=lambda word: None)


def adopted_values(data_dir: Path, cluster: str = CLUSTER) -> dict[str, list[bytes | None]]:
    """Every record of slot 0, by partition; the directory is closed again as a crash would."""
    directory = LogDirectory.open(data_dir / "slot-0", node_id=0, cluster_id=cluster, clock=CLOCK)
    found = {}
    for partition, topic_id in partitions_on_disk(directory.path).items():
        assert topic_id is not None
        log = directory.open_partition(partition, topic_id, SETTINGS)
        log.check()
        found[str(partition)] = [record.value for record in read_all(log)]
    directory.abandon()
    return found


def bytes_of(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_ino, path.read_bytes()) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("copy", [True, False])
def test_topics_ids_records_and_cluster_are_taken_over(tmp_path: Path, clean: bool, copy: bool) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS), ("orders", 1, ORDERS), clean=clean)
    before = bytes_of(kafka)
    carried_out(planned(kafka), tmp_path / "data", copy=copy)
    found = adopted_values(tmp_path / "data")
    assert found.keys() == {"orders-0", "orders-1"}
    assert [len(values) for values in found.values()] == [20, 20]
    assert found["orders-1"][7] == b"orders 1 7" + bytes(100)
    store = EmbeddedStore(tmp_path / "data", CLOCK)
    (topic,) = load_topics(store)
    assert (topic.name, topic.topic_id, topic.replicas) == ("orders", ORDERS, ((0,), (0,)))
    assert [state.leader_epoch for state in topic.states if state] == [7, 7], "a new leadership"
    assert cluster_id(store) == CLUSTER
    assert b'"41"' in store.get(PRODUCER_ID_BLOCK).data, "ids of Kafka's producers are not given again"
    store.close()
    assert bytes_of(kafka) == before, "the way back"


def test_what_somebody_may_still_write_is_never_shared(tmp_path: Path) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS))
    carried_out(planned(kafka), tmp_path / "data")
    shared = {
        path.name for path in (tmp_path / "data").rglob("*") if path.is_file() and path.stat().st_nlink > 1
    }
    segments = sorted(path.name for path in (kafka / "orders-0").glob("*.log"))
    assert len(segments) > 2
    assert shared == set(segments[:-1])


def test_all_log_dirs_of_a_broker_become_one_and_two_brokers_are_refused(tmp_path: Path) -> None:
    first = kafka_wrote(tmp_path / "a", ("orders", 0, ORDERS))
    second = kafka_wrote(tmp_path / "b", ("orders", 1, ORDERS), ("bills", 0, BILLS))
    plan = planned(first, second)
    assert plan.refusals == ()
    assert [(topic.name, len(topic.found)) for topic in plan.topics] == [("bills", 1), ("orders", 2)]
    other = kafka_wrote(tmp_path / "c", ("bills", 1, BILLS), node_id=4)
    assert "different brokers" in planned(first, other).refusals[0]
    with pytest.raises(OperatorFault, match="different brokers"):
        carried_out(planned(first, other), tmp_path / "data")


def test_a_missing_partition_is_refused_unless_it_shall_be_empty(tmp_path: Path) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS), ("orders", 2, ORDERS))
    (refusal,) = planned(kafka).refusals
    assert "orders: partitions 1 of 3 are not here" in refusal
    plan = planned(kafka, fill_gaps=True)
    assert plan.refusals == ()
    assert [partition is not None for partition in plan.topics[0].partitions] == [True, False, True]
    assert planned(kafka, without=("orders",)).topics == ()


def test_two_ids_in_one_topic_are_refused_and_none_gets_a_new_one(tmp_path: Path) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS), ("orders", 1, BILLS))
    assert "different topic ids" in planned(kafka).refusals[0]
    for path in kafka.glob("*/partition.metadata"):
        path.unlink()
    plan = planned(kafka)
    assert plan.refusals == ()
    carried_out(plan, tmp_path / "data")
    assert len(adopted_values(tmp_path / "data")) == 2


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_format_is_refused_by_partition(tmp_path: Path, magic: int) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS), ("bills", 0, BILLS))
    message = bytes(8) + (200).to_bytes(4, "big") + b"crc!" + bytes([magic]) + bytes(195)
    (kafka / "bills-0" / f"{0:020d}.log").write_bytes(message)
    (refusal,) = planned(kafka).refusals
    assert refusal.startswith("bills-0: ")
    assert f"message format v{magic}" in refusal


def test_a_hole_between_segments_is_refused_and_a_torn_tail_is_told(tmp_path: Path) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS), clean=False)
    segments = sorted((kafka / "orders-0").glob("*.log"))
    with segments[-1].open("ab") as file:
        file.write(b"torn bytes of a batch that was never whole")
    plan = planned(kafka)
    assert plan.refusals == ()
    assert any("torn bytes" in word for word in plan.words)
    content = bytearray(segments[0].read_bytes())
    content[-10:] = b""
    segments[0].write_bytes(content)
    assert "damaged" in planned(kafka).refusals[0]


def test_without_metadata_nothing_will_be_deleted_by_age_and_compacted_stays_so(tmp_path: Path) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS), ("bills", 0, BILLS))
    write_offsets(kafka / CLEANER_OFFSETS, {TopicPartition("bills", 0): 3})
    configs = {topic.name: topic.configs for topic in planned(kafka).topics}
    assert configs == {"bills": {"cleanup.policy": "compact"}, "orders": {"retention.ms": "-1"}}


def metadata_record(key: int, body: bytes, *, version: int = 0) -> Record:
    return Record(uvarint_bytes(1) + uvarint_bytes(key) + uvarint_bytes(version) + body)


def test_settings_counts_epochs_and_producer_ids_come_from_the_metadata_log(tmp_path: Path) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS), ("bills", 0, BILLS))
    gone, no_tags = UUID(int=9), uvarint_bytes(0)

    def partition(number: int, epoch: int) -> bytes:
        arrays = (uvarint_bytes(2) + bytes(4)) * 2 + uvarint_bytes(1) * 2
        numbers = bytes(4) + epoch.to_bytes(4, "big") + bytes(4)
        return number.to_bytes(4, "big") + uuid_bytes(ORDERS) + arrays + numbers + uvarint_bytes(1) + no_tags

    def config(name: str, value: str | None) -> bytes:
        texts = [compact_string_bytes(text) for text in ("orders", name, value)]
        return b"\x02" + b"".join(texts) + no_tags

    leader_change = uvarint_bytes(1) + uvarint_bytes(1) + uvarint_bytes(4) + bytes(4)
    records = [
        metadata_record(2, compact_string_bytes("orders") + uuid_bytes(ORDERS) + no_tags),
        metadata_record(2, compact_string_bytes("bills") + uuid_bytes(gone) + no_tags),
        metadata_record(3, partition(0, 30), version=1),
        metadata_record(3, partition(1, 2), version=1),
        metadata_record(5, bytes(4) + uuid_bytes(ORDERS) + leader_change),
        metadata_record(4, config("retention.ms", "77")),
        metadata_record(4, config("segment.ms", "5000")),
        metadata_record(4, config("segment.ms", None)),
        metadata_record(4, config("of.no.broker", "1")),
        metadata_record(15, bytes(12) + (9000).to_bytes(8, "big") + no_tags),
        metadata_record(9, uuid_bytes(gone) + no_tags),
    ]
    (kafka / METADATA_DIRECTORY).mkdir()
    (kafka / METADATA_DIRECTORY / f"{0:020d}.log").write_bytes(encode_batch(records))
    plan = planned(kafka, fill_gaps=True)
    (orders,) = plan.topics
    assert orders.configs == {"retention.ms": "77"}
    assert orders.leader_epochs == (32, 3)
    assert plan.first_producer_id == 9000
    assert any("of.no.broker" in word for word in plan.words)
    assert any(word.startswith("bills: ") for word in plan.words), "Kafka had deleted it"
    assert "partitions 1 of 2 are not here" in planned(kafka).refusals[0]


def interrupted(root: Path, plan: AdoptionPlan, number: int) -> bool:
    """Whether an adoption into a new directory is interrupted when its n-th call of the system fails."""
    with FileHistory(root, faults={number: Fails()}):
        try:
            carried_out(plan, root)
        except (HostFault, OSError):
            return True
    return False


def test_an_adoption_that_was_interrupted_is_not_served_and_can_be_run_again(tmp_path: Path) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS), batches=8)
    plan, before = planned(kafka), bytes_of(kafka)
    number = 0
    while interrupted(root := tmp_path / f"data-{number}", plan, number):
        if (root / MARKER).exists():
            with pytest.raises(OperatorFault, match="interrupted"):
                refuse_unfinished(root)
        if (root / MARKER).exists() or not (root / "slot-0").exists():
            carried_out(plan, root)
        refuse_unfinished(root)
        assert len(adopted_values(root)["orders-0"]) == 8
        number += 1
    assert number > 20
    assert bytes_of(kafka) == before


def test_a_data_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    kafka = kafka_wrote(tmp_path / "kafka", ("orders", 0, ORDERS))
    carried_out(planned(kafka), tmp_path / "data")
    with pytest.raises(OperatorFault, match="new data directory"):
        carried_out(planned(kafka), tmp_path / "data")
    assert len(adopted_values(tmp_path / "data")["orders-0"]) == 20


def test_a_directory_in_use_or_not_kafkas_is_not_held(tmp_path: Path) -> None:
    with pytest.raises(OperatorFault, match="no log directory"), held(tmp_path):
        pass
    root = tmp_path / "kafka"
    directory = LogDirectory.open(root, node_id=1, cluster_id=CLUSTER, clock=CLOCK)
    with pytest.raises(DataDirectoryInUse, match="stop the broker"), held(root):
        pass
    directory.close()
    descriptors = len(os.listdir("/proc/self/fd"))
    with held(root):
        pass
    assert len(os.listdir("/proc/self/fd")) == descriptors
