"""Where a leader's log is looked for: on any disk of its slot, whatever has become of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cluster import TopicPartition
from appliance.errors import StorageFault
from appliance.replicas.leader_log import LeaderLog

PARTITION = TopicPartition("t", 3)


def log_in(*directories: Path) -> LeaderLog:
    return LeaderLog(directories, PARTITION, files_version=lambda: 0)


def unreadable(path: Path) -> Path:
    """A directory that the system does not look into."""
    return path / ("x" * 300)


def test_a_disk_that_cannot_be_looked_at_does_not_hide_another(tmp_path: Path) -> None:
    (tmp_path / "b" / str(PARTITION)).mkdir(parents=True)
    for order in ([unreadable(tmp_path), tmp_path / "b"], [tmp_path / "b", unreadable(tmp_path)]):
        assert log_in(*order).directory() == str(tmp_path / "b" / str(PARTITION))


def test_what_may_be_on_a_disk_that_cannot_be_looked_at_is_not_said_to_be_nowhere(tmp_path: Path) -> None:
    with pytest.raises(StorageFault):
        log_in(unreadable(tmp_path), tmp_path).directory()
    assert log_in(tmp_path).directory() is None
