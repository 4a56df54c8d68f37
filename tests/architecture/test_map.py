"""ARCHITECTURE.md and the READMEs of rooms lead to every file, and only to files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import room_files
from scripts.room_files import APPLIANCE, ROOT

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PLACES = ARCHITECTURE.partition("## Where a change goes")[2].partition("\n## ")[0]
FLOORS = ARCHITECTURE.partition("## Floors")[2].partition("\n## ")[0]

PATH = re.compile(r"`([\w.-]+(?:/[\w.*-]+)*/?)`")
COMMAND = re.compile(r"`(?:python|make|appliance) [^`]*`")
ROOTS = (APPLIANCE, ROOT)


def rows(section: str) -> list[str]:
    """Return the rows of the tables in a section, without their heads."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| you want", "| module"))]


def lost(row: str) -> list[str]:
    """Return the paths of a row that do not exist.

    A path begins at `appliance/`, at the root of the repository, or at a directory that the row has named before.
    """
    bases = list(ROOTS)
    missing = []
    for name in PATH.findall(COMMAND.sub("", row)):
        if "/" not in name and not name.endswith((".py", ".md")):
            continue
        found = [path for base in bases for path in base.glob(name.rstrip("/"))]
        if not found:
            missing.append(name)
        bases += [path if path.is_dir() else path.parent for path in found]
    return missing


def test_every_path_of_the_table_of_changes_exists() -> None:
    assert [(row, lost(row)) for row in rows(PLACES) if lost(row)] == []
    assert len(rows(PLACES)) > 60


@pytest.mark.parametrize("row", ["| change it | `log/no_such.py` |", "| change it | `log/`: `agent.py` |"])
def test_a_path_that_leads_nowhere_is_found(row: str) -> None:
    assert lost(row) != []


def test_every_room_and_every_module_beside_the_rooms_has_its_place() -> None:
    in_rooms = [readme.parent for readme in room_files.readmes() if APPLIANCE in readme.parents]
    for room in {directory.relative_to(APPLIANCE).parts[0] for directory in in_rooms}:
        assert f"`{room}`" in FLOORS or room == "control", room
        assert re.search(rf"`{room}/", PLACES), f"no change of the table goes to {room}/"
    for directory in (path for path in APPLIANCE.iterdir() if (path / "__init__.py").exists()):
        assert f"`{directory.name}`" in FLOORS, directory.name
    for directory in (path for path in (APPLIANCE / "control").iterdir() if (path / "__init__.py").exists()):
        assert f"`control/{directory.name}/" in PLACES, directory.name
    for module in APPLIANCE.glob("*.py"):
        assert module.name == "__init__.py" or f"`{module.name}`" in PLACES, f"{module.name} is nowhere named"


@pytest.mark.parametrize("readme", room_files.readmes(), ids=lambda path: str(path.relative_to(ROOT).parent))
def test_the_readme_of_a_room_names_each_module(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    assert room_files.with_list(readme, text) == text, "stale: run python -m scripts.room_files"
    assert room_files.unnamed(readme, text) == [], f"{readme} does not name these modules"


def test_a_module_without_a_line_is_found() -> None:
    readme = APPLIANCE / "tls" / "README.md"
    text = readme.read_text(encoding="utf-8")
    assert room_files.unnamed(readme, text.replace("`certificates.py`", "")) == ["certificates.py"]


SOURCES = (
    "appliance",
    "appliance_client",
    "pyspark_appliance",
    "spark_connector",
    "scripts",
    "tests",
    "benchmarks",
)
LINES_MAX = 600
LONGER = {
    "scripts/systemd/inside.py": "one test that runs inside a container, where it can import nothing",
    "tests/checker/backlog_readers.py": "the readers of a backlog, whose rounds share one state",
    "tests/checker/transaction_workload.py": "one workload: what it sends and what it must find belong together",
    "tests/control/coordinator/transaction/test_transactions.py": "one table of promises about one state machine",
    "tests/log/test_partition_log.py": "the promises of one class",
    "tests/native/test_arrow.py": "each type of column with its conversions",
    "tests/native/test_local_reader.py": "the promises of one class",
    "tests/system/test_acls_beside_kafka.py": "one walk over all APIs, compared with Apache Kafka",
    "tests/system/test_zeromq.py": "the promises of docs/zeromq.md, on one broker",
    "tests/system/transaction_answers.py": "one table of requests and the answers of Apache Kafka",
}
"""Files that are longer for now, and why each is one file. A new entry needs a reason that is as good."""


def test_files_are_short_enough_to_be_read_in_one_go() -> None:
    longer = {
        path.relative_to(ROOT).as_posix()
        for source in SOURCES
        for path in (ROOT / source).rglob("*.py")
        if "node_modules" not in path.parts and len(path.read_text(encoding="utf-8").splitlines()) > LINES_MAX
    }
    assert longer - set(LONGER) == set(), f"split these files, or shorten them to {LINES_MAX} lines"
    assert set(LONGER) - longer == set(), "these files are short now: remove them from LONGER"
