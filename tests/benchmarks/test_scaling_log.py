"""The case about bytes of log kills a broker whose log is not flushed, and says how much of it was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import proc
from benchmarks.cases import CASES
from benchmarks.cases.case import Bench, Scale
from benchmarks.load import generators
from benchmarks.machine import WarmMemory
from benchmarks.void import Void
from tests.benchmarks.stand_ins import StandIn

MIB = 1 << 20


class Paper(StandIn):
    """A log of one partition that is flushed by a clean stop alone."""

    name = "paper"

    def __init__(self, data_dir: Path, *, loses: int = 0) -> None:
        super().__init__(data_dir)
        self.records = 0
        self.did: list[str] = []
        self.loses = loses

    def start(self) -> None:
        self.did.append("start")
        self.first_ack_seconds = 0.5
        self.records += 1  # the knock

    def stop(self) -> None:
        self.did.append("stop")
        (self.data_dir / "slot-0").mkdir(exist_ok=True)
        point = f"0\n2\nlog 1 7\nlog 0 {self.records}\n"
        (self.data_dir / "slot-0" / "recovery-point-offset-checkpoint").write_text(point)

    def kill(self) -> None:
        self.did.append("kill")
        self.records -= self.loses

    def create_topic(self, topic: str, partitions: int) -> None:
        assert (topic, partitions) == ("log", 1)

    def end_offset(self, topic: str, partitions: int) -> int:
        return self.records


def grown(broker: Paper, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the case brings home of 64 and 256 MiB."""

    def streamed(address: str, topic: str, *, records: int, record_bytes: int) -> None:
        broker.did.append("stream")
        broker.records += records

    monkeypatch.setattr(generators, "stream_in", streamed)
    monkeypatch.setattr(proc, "pss_bytes", lambda pids: 80_000_000)
    scale = Scale(backlog_bytes=256 * MIB // 4)
    return CASES["scale_log"].run(Bench(broker, scale, WarmMemory(0, folder=broker.data_dir)))


def test_a_log_is_killed_before_anything_has_flushed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Paper(tmp_path)
    figures = grown(broker, monkeypatch)
    assert broker.did == ["stream", "kill", "start", "stop", "start"] * 2
    assert broker.knocks_at == "log"
    assert figures["recovery_ms@64"] == figures["start_ms@256"] == 500.0
    assert figures["unflushed_mib@64"] == 64
    # The knock after the clean stop lies past its recovery point too.
    assert figures["unflushed_mib@256"] == pytest.approx(192, abs=0.01)
    assert "start_after_kill_ms@64" not in figures


def test_a_log_that_lost_a_record_makes_the_case_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Void, match="65537 records were acknowledged, the log holds 65536"):
        grown(Paper(tmp_path, loses=1), monkeypatch)
