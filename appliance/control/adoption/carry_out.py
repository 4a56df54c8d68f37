"""Carries an adoption out: Kafka's files into slot 0 of a new data directory, and their topics into its store.

    begin     DATA_DIR/adoption.json is written: from here on nobody serves this directory
    files     settled segments become hard links (or copies), everything that somebody may still write is copied
    compare   every file with its source
    store     cluster id, topics, settings, producer ids
    end       adoption.json is removed

Kafka's own directory is not changed, whatever happens: what is appended, cut or rebuilt here is a copy, and a
hard link that is removed here leaves Kafka's name. So the way back is to start Kafka again. Whoever is killed in
between leaves adoption.json behind; the next adoption begins anew.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from appliance.clock import Clock
from appliance.cluster import PartitionImage, TopicImage
from appliance.control.adoption.marker import MARKER
from appliance.control.adoption.plan import AdoptedTopic, AdoptionPlan
from appliance.control.controller.takeover import new_id, plant
from appliance.control.controller.topic_store import creation
from appliance.control.store.embedded_store import DATABASE_NAME, SESSIONS_NAME, EmbeddedStore
from appliance.control.store.metadata_copy import COPY_NAME
from appliance.control.store.metadata_store import Create
from appliance.control.store.znode_tree import PRODUCER_ID_BLOCK, ProducerIdBlockRecord, encode, id_text
from appliance.errors import ApplianceDefect, OperatorFault, StorageFault
from appliance.log.checkpoint import replace_file, sync_directory, write_offsets
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    LOG,
    PARTITION_METADATA,
    parse_segment_file_name,
)
from appliance.log.flush import flush_files
from appliance.log.kafka_directory import KafkaPartition
from appliance.log.meta_properties import claim
from appliance.log.partition_metadata import write_topic_id

_SLOT: Final = 0
_BESIDE_SEGMENTS: Final = (LEADER_EPOCHS, PARTITION_METADATA)


def files_of(partition: KafkaPartition) -> list[tuple[str, bool]]:
    """(name, whether it may be a hard link) of the files that are taken over.

    Only records in segments that nobody writes any more are shared: an index may be rebuilt in place.
    """
    with storage_faults(partition.directory):
        names = sorted(os.listdir(partition.directory))
    taken = []
    for name in names:
        parsed = parse_segment_file_name(name)
        if parsed is not None:
            taken.append((name, parsed[1] == LOG and parsed[0] < partition.settled_below))
        elif name in _BESIDE_SEGMENTS:
            taken.append((name, False))
    return taken


def bytes_to_copy(plan: AdoptionPlan, *, copy: bool) -> int:
    """How much room the copies take."""
    total = 0
    for topic in plan.topics:
        for partition in topic.found:
            for name, linked in files_of(partition):
                if copy or not linked:
                    # Allocated, not apparent: Kafka maps ten empty megabytes for each index.
                    total += (partition.directory / name).stat().st_blocks * 512
    return total


def carry_out(
    plan: AdoptionPlan,
    data_dir: Path,
    slot_directory: Path,
    *,
    copy: bool,
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Does it all; `data_dir` and every source are held by the caller.

    Raises:
        OperatorFault: there is an instance's data here already, or the plan refuses.
        StorageFault: something could not be written, or linked across file systems.
    """
    if plan.refusals:
        raise OperatorFault("; ".join(plan.refusals))
    _make_room(data_dir, slot_directory)
    for topic in plan.topics:
        for partition in topic.found:
            _take(partition, topic, slot_directory / str(partition.name), copy=copy)
        say(f"{topic.name}: {len(topic.found)} partitions")
    _compare(plan, slot_directory)
    cluster = plan.cluster_id or id_text(new_id())
    claim(slot_directory, cluster_id=cluster, node_id=_SLOT)
    for name, offsets in plan.checkpoints.items():
        write_offsets(slot_directory / name, offsets)
    if plan.is_clean:
        replace_file(slot_directory / CLEAN_SHUTDOWN, json.dumps({"version": 0, "brokerEpoch": -1}).encode())
    with storage_faults(slot_directory):
        sync_directory(slot_directory)
    _fill_store(plan, data_dir, cluster, clock)
    with storage_faults(data_dir):
        sync_directory(data_dir)
        os.unlink(data_dir / MARKER)
        sync_directory(data_dir)


def _make_room(data_dir: Path, slot_directory: Path) -> None:
    marker = data_dir / MARKER
    ours = [slot_directory, *(data_dir / name for name in (DATABASE_NAME, SESSIONS_NAME))]
    ours += [data_dir / f"{DATABASE_NAME}{suffix}" for suffix in ("-wal", "-shm")] + [data_dir / COPY_NAME]
    there = [path for path in ours if path.exists()]
    with storage_faults(data_dir):
        if there and not marker.exists():
            raise OperatorFault(
                f"{there[0]} exists, but Kafka's data can only be adopted into a new data directory"
            )
        if not marker.exists():
            replace_file(marker, b'{"version": 1}\n')
        for path in there:  # what an interrupted adoption left: links and copies
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        slot_directory.mkdir(parents=True)


def _take(partition: KafkaPartition, topic: AdoptedTopic, target: Path, *, copy: bool) -> None:
    with storage_faults(target):
        target.mkdir()
        copies = []
        for name, may_link in files_of(partition):
            source = partition.directory / name
            if may_link and not copy:
                try:
                    os.link(source, target / name)
                except OSError as error:
                    if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                        raise StorageFault(
                            f"{source} cannot be linked into {target}: {error.strerror}; use --copy"
                        ) from error
                    raise
            else:
                shutil.copy2(source, target / name)
                copies.append(target / name)
        flush_files(copies)
        if partition.topic_id is None:
            write_topic_id(target, topic.topic_id)
        sync_directory(target)


def _compare(plan: AdoptionPlan, slot_directory: Path) -> None:
    """Every file is here and as long as its source, before anything says that the takeover is done."""
    for topic in plan.topics:
        for partition in topic.found:
            for name, _ in files_of(partition):
                source, target = partition.directory / name, slot_directory / str(partition.name) / name
                with storage_faults(target):
                    if source.stat().st_size != target.stat().st_size:
                        raise ApplianceDefect(f"{target} is not as long as {source}")


def _fill_store(plan: AdoptionPlan, data_dir: Path, cluster: str, clock: Clock) -> None:
    store = EmbeddedStore(data_dir, clock)
    try:
        plant(store, cluster)
        for topic in plan.topics:
            store.multi(creation(_image(topic), controller_epoch=0))
        if plan.first_producer_id:
            block = ProducerIdBlockRecord(_SLOT, "0", str(plan.first_producer_id - 1))
            store.multi([Create(PRODUCER_ID_BLOCK, encode(block))])
    finally:
        store.close()


def _image(topic: AdoptedTopic) -> TopicImage:
    partitions = tuple(
        PartitionImage(
            partition=number,
            row=0,
            incarnation=0,
            leader=_SLOT,
            leader_epoch=epoch,
            replicas=(_SLOT,),
            isr=(_SLOT,),
        )
        for number, epoch in enumerate(topic.leader_epochs)
    )
    return TopicImage(topic.name, topic.topic_id, partitions, dict(topic.configs))
