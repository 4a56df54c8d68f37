"""The file that `appliance backup --metrics` writes: what it says after a success, a failure, and of another target."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from appliance.metrics import backup_page as names
from appliance.metrics.backup_page import Success, backup_page
from tests.cli.command import appliance

PLACE = 's3://b/"x"'
TAKEN = Success(duration_s=1.5, size_bytes=1000, copied_bytes=10, partitions=3)


def read(page: bytes | str, target: str = PLACE) -> dict[str, float]:
    text = page.decode() if isinstance(page, bytes) else page
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["target"] for sample in samples} == {target}
    return {sample.name: sample.value for sample in samples}


def test_a_success_has_every_series() -> None:
    found = read(backup_page(PLACE, TAKEN, now_s=1000.25))
    assert found == dict(
        zip((family.name for family in names.ALL), (1, 1000.25, 1000.25, 1.5, 1000, 10, 3), strict=True)
    )


def test_a_failure_keeps_the_last_success_through_every_failure() -> None:
    before = backup_page(PLACE, TAKEN, now_s=1000).decode()
    for now_s in (2000, 3000):
        before = backup_page(PLACE, None, now_s=now_s, before=before).decode()
    found = read(before)
    assert (found[names.SUCCEEDED.name], found[names.ATTEMPT_TIME.name]) == (0, 3000)
    assert (found[names.SUCCESS_TIME.name], found[names.SIZE.name]) == (1000, 1000)


def test_a_file_of_something_else_says_nothing() -> None:
    of_another = backup_page("/other", TAKEN, now_s=1000).decode()
    for before in (of_another, "\0\xff junk", f'{names.SIZE.name}{{target="/t"}} many\n'):
        assert set(read(backup_page("/t", None, now_s=5, before=before), "/t")) == {
            names.SUCCEEDED.name,
            names.ATTEMPT_TIME.name,
        }


def test_a_backup_that_fails_says_so_in_the_file(tmp_path: Path) -> None:
    file, target = tmp_path / "backup.prom", tmp_path / "target"
    outcome = appliance("backup", tmp_path / "nothing", target, "--metrics", file)
    assert outcome.code == 1
    assert "no such directory" in outcome.errors
    assert read(file.read_text(), str(target))[names.SUCCEEDED.name] == 0
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("backup.prom")] == [
        "backup.prom"
    ]
    missing = appliance("backup", tmp_path / "nothing", target, "--metrics", tmp_path / "no" / "file")
    assert "no such directory" in missing.errors
    assert "metrics not written" in missing.errors
