"""File names, checkpoints, settings, partition.metadata, meta.properties: the small texts of a log directory."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from uuid import UUID

import pytest

from appliance.cluster import TopicPartition
from appliance.config.topic_configs import topic_config_declarations
from appliance.errors import ConfigurationError, CorruptFile, DiskFull, OperatorFault, StorageFault
from appliance.log import file_names as names
from appliance.log.checkpoint import read_entries, read_offsets, replace_file, write_offsets
from appliance.log.config import LogSettings
from appliance.log.meta_properties import claim
from appliance.log.partition_metadata import read_topic_id, write_topic_id

OFFSETS = {
    TopicPartition("orders", 1): 12,
    TopicPartition("orders", 0): 4711,
    TopicPartition("a.b_c-d", 7): 0,
}


def test_segment_files_have_twenty_digits() -> None:
    assert names.segment_file_name(42, names.LOG) == "00000000000000000042.log"
    assert names.parse_segment_file_name("00000000000000000042.log") == (42, ".log")
    assert names.parse_segment_file_name("00000000000000000042.index.swap") == (42, ".index.swap")


@pytest.mark.parametrize(
    "name", ["leader-epoch-checkpoint", "42.log", "0000000000000000004x.log", "00000000000000000042"]
)
def test_other_files_are_no_part_of_a_segment(name: str) -> None:
    assert names.parse_segment_file_name(name) is None


@pytest.mark.parametrize(
    "partition", [TopicPartition("t", 0), TopicPartition("with-dash-1", 23), TopicPartition("a.b", 9)]
)
def test_a_partition_directory_says_its_partition(partition: TopicPartition) -> None:
    assert names.parse_partition_directory_name(names.partition_directory_name(partition)) == partition


def test_marked_directories_are_no_partitions_and_fit_the_file_system() -> None:
    marked = names.marked_directory_name(TopicPartition("t" * 249, 10_000), names.DIRECTORY_DELETED)
    assert len(marked) <= 255
    assert marked.endswith("-delete")
    assert names.parse_partition_directory_name(marked) is None


def test_offset_checkpoints_have_kafkas_text(tmp_path: Path) -> None:
    path = tmp_path / names.RECOVERY_POINTS
    write_offsets(path, OFFSETS)
    assert path.read_text() == "0\n3\na.b_c-d 7 0\norders 0 4711\norders 1 12\n"
    assert read_offsets(path) == OFFSETS
    assert os.listdir(tmp_path) == [path.name]


def test_a_missing_checkpoint_has_no_entries(tmp_path: Path) -> None:
    assert read_offsets(tmp_path / "none") == {}


@pytest.mark.parametrize("text", ["x", "0", "1\n0\n", "0\n2\nt 0 1\n", "0\n1\nt 0\n", "0\n1\nt zero 1\n"])
def test_a_checkpoint_that_does_not_parse_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(CorruptFile):
        read_offsets(path)


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_offsets(path, OFFSETS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(DiskFull):
            write_offsets(path, {TopicPartition("t", number): number for number in range(100)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_offsets(path) == OFFSETS


def test_a_file_in_a_missing_directory_is_a_storage_fault(tmp_path: Path) -> None:
    with pytest.raises(StorageFault):
        replace_file(tmp_path / "gone" / "file", b"")


def test_entries_are_the_fields_of_each_line(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_text("0\n2\n1 0\n3 40\n")
    assert read_entries(path) == [["1", "0"], ["3", "40"]]


def test_partition_metadata_has_kafkas_text(tmp_path: Path) -> None:
    topic_id = UUID("9d3a82546186 4f84 8109 79a97dc74f8e".replace(" ", ""))
    write_topic_id(tmp_path, topic_id)
    text = (tmp_path / names.PARTITION_METADATA).read_text()
    assert text == "version: 0\ntopic_id: nTqCVGGGT4SBCXmpfcdPjg"
    assert read_topic_id(tmp_path) == topic_id


def test_partition_metadata_that_a_power_cut_left_empty_says_nothing(tmp_path: Path) -> None:
    (tmp_path / names.PARTITION_METADATA).touch()
    assert read_topic_id(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["\n", "version: 1\ntopic_id: nTqCVGGGT4SBCXmpfcdPjg", "version: 0\ntopic_id: short"]
)
def test_partition_metadata_that_does_not_parse_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / names.PARTITION_METADATA).write_text(text)
    with pytest.raises(CorruptFile):
        read_topic_id(tmp_path)


def test_a_directory_is_claimed_once_and_known_again(tmp_path: Path) -> None:
    claim(tmp_path, cluster_id="c1", node_id=0)
    text = (tmp_path / names.META_PROPERTIES).read_text()
    assert text.startswith("version=1\ncluster.id=c1\nnode.id=0\ndirectory.id=")
    claim(tmp_path, cluster_id="c1", node_id=0)
    assert (tmp_path / names.META_PROPERTIES).read_text() == text


@pytest.mark.parametrize(("cluster_id", "node_id"), [("c2", 0), ("c1", 1)])
def test_another_ones_directory_is_refused_by_name(tmp_path: Path, cluster_id: str, node_id: int) -> None:
    claim(tmp_path, cluster_id="c1", node_id=0)
    with pytest.raises(OperatorFault, match="node 0 of cluster c1"):
        claim(tmp_path, cluster_id=cluster_id, node_id=node_id)


def test_properties_as_java_writes_them_are_read(tmp_path: Path) -> None:
    (tmp_path / names.META_PROPERTIES).write_text("#\n#Tue Nov 21\nnode.id=0\nversion=1\ncluster.id=a\\=b\n")
    claim(tmp_path, cluster_id="a=b", node_id=0)


def test_defaults_are_the_declared_ones() -> None:
    settings = LogSettings()
    for declaration in topic_config_declarations():
        field = declaration.name.replace(".", "_")
        if hasattr(settings, field):
            declared = declaration.default
            value = getattr(settings, field)
            assert value == (frozenset(declared) if isinstance(declared, tuple) else declared), (
                declaration.name
            )


def test_settings_are_read_by_kafkas_names_and_others_passed_over() -> None:
    settings = LogSettings.from_configs(
        {
            "segment.bytes": "1048576",
            "cleanup.policy": "compact,delete",
            "message.timestamp.type": "LogAppendTime",
            "max.decompressed.bytes": "5",
            "retention.ms": "1",
        }
    )
    assert settings.segment_bytes == 1 << 20
    assert settings.is_compacted
    assert settings.is_log_append_time
    assert settings.max_decompressed_bytes == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [("segment.bytes", "many"), ("message.timestamp.type", "Never"), ("max.decompressed.bytes", "0")],
)
def test_a_wrong_setting_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        LogSettings.from_configs({name: text})
