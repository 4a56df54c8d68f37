"""What docs/reading-off-disk.md tells whoever writes a reader of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.log.partition_state import read_state
from tests.spark.logs import filled, publish

PAGE = (Path(__file__).parents[2] / "docs" / "reading-off-disk.md").read_text()


def test_the_example_of_the_page_reads_every_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path)
    # The second one is a consumer of the native client, tested where the local reader is.
    example, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "/var/lib/appliance" in example
    exec(example.replace("/var/lib/appliance", str(tmp_path)), {})
    told = [int(number) for number in re.findall(r"\d+", capsys.readouterr().out)]
    assert sorted(told) == sorted([*range(0, 180, 3), *[3] * 60])


def test_the_state_file_lies_as_the_page_says(tmp_path: Path) -> None:
    told = (
        r"two records of (\d+) bytes, at positions 0 and (\d+)\. All numbers in the state file are little-endian\. "
        r"The file has (\d+) bytes until the owner writes a record at position (\d+), and (\d+) bytes afterwards\."
    )
    ((record_bytes, second, small, written_at, large),) = re.findall(told, " ".join(PAGE.split()))
    assert written_at == second
    log, state_file = filled(tmp_path)
    state = log.directory / ".state"
    assert state.stat().st_size == int(small)
    newer = publish(log, state_file)
    content = state.read_bytes()
    assert len(content) == int(large)
    # Each of the two counts by itself, and of two the one with the higher sequence.
    sequences = []
    for at in (0, int(second)):
        alone = bytearray(len(content))
        alone[at : at + int(record_bytes)] = content[at : at + int(record_bytes)]
        state.write_bytes(alone)
        said = read_state(log.directory)
        assert said is not None
        sequences.append(said.sequence)
    assert max(sequences) == min(sequences) + 1 == newer.sequence
    state.write_bytes(content)
    assert read_state(log.directory) == newer
