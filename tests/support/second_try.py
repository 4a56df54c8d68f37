"""The gate's one second try, for tests that start processes (decision 0045), and what is said about it at the end.

Only where the run asks for it (`pytest --reruns 1 --max-suite-reruns 3`, as `make test` does) is a failed test run once
more, and only in the rooms named here. What a pure test says once, it says always: it has no second try anywhere.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

import pytest

from tests.support.pace import stolen_s

ROOMS: Final = frozenset(
    {
        "benchmarks",
        "cli",
        "clients",
        "control",
        "crash",
        "delayed",
        "gateway",
        "ioproc",
        "lane",
        "native",
        "netproc",
        "replicas",
        "requests",
        "spark",
        "system",
        "testing",
    }
)
"""Rooms whose tests start processes, or speak with some."""

PURE: Final = (PurePath("control", "coordinator"),)
"""Within them: what is decided without a process."""

FORKS: Final = "fork"
"""The fixture of `tests/ipc` for tests of several processes; the others of that room are pure."""

UNFORGIVEN: Final = r"\b(lost|loses|doubled|twice|out of order)\b"
"""What no failure says that is tried again: records missing or doubled are no matter of a late process."""

SAVED: Final = "passed at the second try: look at these"
LOST: Final = "failed twice; the first time like this"

_STOLEN_BEFORE: Final = pytest.StashKey[float]()


def may_be_tried_again(test: pytest.Item) -> bool:
    """Whether processes take part in it, which others on the machine may hold up."""
    try:
        place = test.path.relative_to(test.config.rootpath / "tests")
    except ValueError:
        return False
    if place.parts[0] == "ipc":
        return FORKS in getattr(test, "fixturenames", ())
    return place.parts[0] in ROOMS and not any(place.is_relative_to(pure) for pure in PURE)


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """A test's own mark goes before the run's `--reruns`."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return  # `make quick` runs without it
    asked_for = config.getoption("reruns") or 0
    for test in items:
        reruns = asked_for if may_be_tried_again(test) else 0
        test.add_marker(pytest.mark.flaky(reruns=reruns, rerun_except=UNFORGIVEN))


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_STOLEN_BEFORE] = stolen_s()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """First failures with their text, under a heading that tells whether the second try passed; and the machine."""
    told = terminalreporter.stats
    first = told.get("rerun", [])
    lost = [*told.get("failed", []), *told.get("error", [])]
    lost_tests = {report.nodeid for report in lost}
    saved_first = [report for report in first if report.nodeid not in lost_tests]
    lost_first = [report for report in first if report.nodeid in lost_tests]
    for heading, reports in ((LOST, lost_first), (SAVED, saved_first)):
        if reports:
            terminalreporter.section(heading, yellow=True, bold=True)
        for report in reports:
            terminalreporter.section(f"{report.nodeid} ({report.when})", "_")
            terminalreporter.write_line(report.longreprtext)
            for title, text in report.sections:
                terminalreporter.section(title, "-")
                terminalreporter.write_line(text)
    for report in saved_first:
        terminalreporter.write_line(f"SECOND TRY {report.nodeid}", yellow=True)
    if first or lost:
        terminalreporter.write_line(f"the machine: {_machine(config.stash[_STOLEN_BEFORE])}")


def _machine(stolen_before_s: float) -> str:
    load = " ".join(f"{figure:.1f}" for figure in os.getloadavg())
    stolen = stolen_s() - stolen_before_s
    return (
        f"{os.cpu_count()} cores, load {load}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {stolen:.1f} s of processor time stolen during the run"
    )
