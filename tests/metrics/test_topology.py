"""What follows from a metadata image, and what is kept of processes that die."""

from __future__ import annotations

import os
from uuid import UUID

import pytest

from appliance.channels.traffic_table import KEPT_PER_PAGE
from appliance.cluster import BrokerSlot, ClusterImage, PartitionImage, TopicImage
from appliance.config import Settings
from appliance.config.sections.metrics import MetricsSettings
from appliance.ipc.process_table import ProcessSnapshot, ProcessTable, process_table_size_bytes
from appliance.metrics.kafka_page import quantile
from appliance.metrics.proc_files import ProcFiles
from appliance.metrics.topology import Rows, Topology


def partition(
    number: int, *, leader: int = 0, isr: tuple[int, ...] = (0, 1), **more: object
) -> PartitionImage:
    values = {"replicas": (0, 1), "row": number, "incarnation": 100 + number, **more}
    return PartitionImage(partition=number, leader=leader, leader_epoch=1, isr=isr, **values)  # type: ignore[arg-type]


def topology(*topics: TopicImage, topics_max: int = 10) -> Topology:
    slots = tuple(BrokerSlot(slot, "h", 9092 + slot) for slot in range(2))
    image = ClusterImage(1, "c", 0, 1, slots, {topic.name: topic for topic in topics}, {}, {})
    return Topology.of(image, Settings(slots=2, metrics=MetricsSettings(topics_max=topics_max)))


def topic(name: str, *partitions: PartitionImage, configs: dict[str, str] | None = None) -> TopicImage:
    return TopicImage(name, UUID(int=1), partitions, configs or {})


def test_partitions_count_for_their_leader() -> None:
    found = topology(
        topic(
            "t",
            partition(0),
            partition(1, leader=1),
            partition(2, isr=(0,)),
            partition(3, leader=-1, isr=()),
            partition(4, replicas=(0, 1, 2), adding=(2,)),
            configs={"min.insync.replicas": "2"},
        )
    )
    assert dict(found.leaders) == {0: 3, 1: 1}
    assert dict(found.replicas) == {0: 5, 1: 5, 2: 1}
    assert dict(found.under_replicated) == {0: 1}
    assert dict(found.under_min_isr) == {0: 1}
    assert dict(found.at_min_isr) == {0: 2, 1: 1}
    assert dict(found.not_preferred) == {0: 1}
    assert (found.leaderless, found.partition_count) == (1, 5)


def test_the_oldest_topics_have_series_and_keep_them() -> None:
    young = topic("a", partition(0, row=0, incarnation=9))
    old = topic("z", partition(0, row=1, incarnation=3))
    found = topology(young, old, topics_max=1)
    assert ([each.name for each in found.topics], found.topic_count) == (["z"], 2)


@pytest.mark.parametrize("rows", [(), (3,), (2, 3, 4), (4, 2), (0, 5)])
def test_rows_add_up_however_they_lie(rows: tuple[int, ...]) -> None:
    column = [1, 2, 4, 8, 16, 32]
    assert Rows(rows).total(column) == sum(column[row] for row in rows)


def test_idle_time_goes_on_where_a_page_has_shown_it() -> None:
    kept = [memoryview(bytearray(4096)).cast("q")]
    files = ProcFiles(kept, parent=os.getpid())
    assert files.idle_ns(3, 1, 500) == 500
    assert files.idle_ns(3, 1, 100) == 500, "it was killed in its sleep, and its row says less"
    assert files.idle_ns(3, 2, 110) == 500
    assert files.idle_ns(3, 2, 150) == 540, "the next life adds to what was shown"
    files = ProcFiles(kept, parent=os.getpid())
    assert files.idle_ns(3, 2, 160) == 550, "a next life of this process knows it"
    assert files.idle_ns(KEPT_PER_PAGE - 1, 1, 7) == 7


def test_what_a_process_has_written_never_falls_with_its_lives() -> None:
    kept = [memoryview(bytearray(4096)).cast("q")]
    row, last = _absent_row(), KEPT_PER_PAGE - 1

    def used(files: ProcFiles, index: int = 3) -> tuple[int, int]:
        usage = files.usage(index, row)
        return usage.read_bytes, usage.written_bytes

    files = ProcFiles(kept, parent=os.getpid())
    assert used(files) == (0, 0)
    files.note_disk(3, 1, read_bytes=10, written_bytes=500)
    assert used(files) == (10, 500), "a process that has died keeps what it had written"
    files.note_disk(3, 2, read_bytes=0, written_bytes=100)
    assert used(files) == (10, 600), "the next life adds to it"
    files.note_disk(3, 2, read_bytes=-1, written_bytes=-1)
    assert used(ProcFiles(kept, parent=os.getpid())) == (10, 600), "a next life of the reader knows it"
    files.note_disk(last, 1, read_bytes=1, written_bytes=2)
    assert (used(files, last), used(files, last - 1)) == ((1, 2), (0, 0))


def _absent_row() -> ProcessSnapshot:
    return ProcessTable(memoryview(bytearray(process_table_size_bytes(1)))).row(0).snapshot()


@pytest.mark.parametrize(
    ("counts", "share", "wanted_ns"),
    [
        ([0] * 18, 0.5, 0),
        ([4, *[0] * 17], 0.5, 25_000),
        ([0, 4, *[0] * 16], 0.5, 75_000),
        ([*[0] * 17, 4], 0.99, 10_000_000_000),
        ([2, 2, *[0] * 16], 0.5, 50_000),
    ],
)
def test_quantiles_are_interpolated(counts: list[int], share: float, wanted_ns: float) -> None:
    assert quantile(counts, share) == pytest.approx(wanted_ns)
