"""`appliance doctor`: each check with facts of its own, and the command on this host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.cli.doctor_checks import GIB, Facts, Finding, Level, ListenerFact, Place, examine
from tests.cli.command import appliance

DISK: Final = Place("/data/slot-0", "ext4", 1000 * GIB, 800 * GIB, 0.9, "/dev/sda1", is_rotating=False)
SOUND: Final = Facts(
    machine="x86_64",
    kernel=(6, 1),
    open_files=262_144,
    locked_bytes=None,
    shared_memory_bytes=16 * GIB,
    pool_bytes=GIB,
    map_count_max=1_048_576,
    backlog_max=4096,
    backlog=1024,
    swappiness=1,
    autogroup=0,
    swap_bytes=GIB,
    dirty_bytes=2 * GIB,
    dirty_ratio=20,
    memory_bytes=32 * GIB,
    memory_limit_bytes=None,
    clock_source="tsc",
    is_clock_synchronized=True,
    places=(DISK,),
    slots=1,
    listeners=(ListenerFact("PLAINTEXT", "127.0.0.1:9092", False, True, False),),
    has_authorizer=False,
    durability="fsync",
    replication_factor=1,
    min_insync=1,
    unclean_election=False,
    data_dir_mode=0o40700,
    data_dir_owner=990,
    user=990,
)
OPEN: Final = ListenerFact("PLAINTEXT", "0.0.0.0:9092", False, False, False)
CLEAR: Final = ListenerFact("SASL_PLAINTEXT", "0.0.0.0:9092", True, False, False)


def unsound(facts: Facts) -> list[Finding]:
    return [each for each in examine(facts) if each.level is not Level.OK]


def test_sound_host_needs_no_change() -> None:
    assert unsound(SOUND) == []


@pytest.mark.parametrize(
    ("check", "level", "change"),
    [
        ("kernel", Level.PROBLEM, {"machine": "aarch64"}),
        ("kernel", Level.PROBLEM, {"kernel": (5, 4)}),
        ("kernel", Level.ADVICE, {"kernel": (5, 10)}),
        ("open files", Level.PROBLEM, {"open_files": 1024}),
        ("open files", Level.ADVICE, {"open_files": 65_536}),
        ("shared memory", Level.PROBLEM, {"shared_memory_bytes": 64 << 20}),
        ("shared memory", Level.ADVICE, {"shared_memory_bytes": GIB + 1}),
        ("mappings", Level.ADVICE, {"map_count_max": 65_530}),
        ("backlog", Level.ADVICE, {"backlog_max": 128}),
        ("swapping", Level.ADVICE, {"swappiness": 60}),
        ("scheduling", Level.ADVICE, {"autogroup": 1}),
        ("writing back", Level.ADVICE, {"dirty_bytes": None, "memory_bytes": 512 * GIB}),
        ("memory", Level.PROBLEM, {"memory_limit_bytes": GIB // 2}),
        ("memory", Level.ADVICE, {"memory_bytes": 2 * GIB}),
        ("clock", Level.ADVICE, {"is_clock_synchronized": False}),
        ("clock source", Level.ADVICE, {"clock_source": "hpet"}),
        ("file system", Level.PROBLEM, {"places": (replace(DISK, file_system="tmpfs"),)}),
        ("file system", Level.PROBLEM, {"places": (replace(DISK, file_system="nfs4"),)}),
        ("file system", Level.ADVICE, {"places": (replace(DISK, file_system="overlay"),)}),
        ("disk space", Level.PROBLEM, {"places": (replace(DISK, free_bytes=GIB),)}),
        ("disk space", Level.ADVICE, {"places": (replace(DISK, free_bytes=100 * GIB),)}),
        ("disk space", Level.PROBLEM, {"places": (replace(DISK, free_inodes_share=0.01),)}),
        ("disks", Level.ADVICE, {"slots": 3, "places": (DISK, DISK, DISK)}),
        ("disks", Level.ADVICE, {"places": (replace(DISK, is_rotating=True),)}),
        ("durability", Level.ADVICE, {"durability": "page-cache"}),
        ("replication", Level.ADVICE, {"replication_factor": 3}),
        ("replication", Level.PROBLEM, {"unclean_election": True}),
        ("listener", Level.PROBLEM, {"listeners": (OPEN,), "has_authorizer": True}),
        ("listener", Level.ADVICE, {"listeners": (CLEAR,), "has_authorizer": True}),
        ("access", Level.ADVICE, {"listeners": (replace(CLEAR, is_encrypted=True),)}),
        ("data directory", Level.PROBLEM, {"data_dir_mode": 0o40777}),
        ("data directory", Level.ADVICE, {"data_dir_mode": 0o40755}),
        ("user", Level.ADVICE, {"data_dir_owner": 0, "user": 0}),
        ("user", Level.ADVICE, {"user": 1000}),
    ],
)
def test_each_check_finds_its_fault_and_says_what_to_change(
    check: str, level: Level, change: dict[str, Any]
) -> None:
    (found,) = unsound(replace(SOUND, **change))
    assert (found.check, found.level) == (check, level)
    assert found.change
    assert found.why


def test_missing_facts_are_no_fault() -> None:
    unknown = replace(
        SOUND,
        map_count_max=None,
        backlog_max=None,
        swappiness=None,
        autogroup=None,
        dirty_bytes=None,
        dirty_ratio=None,
        clock_source=None,
        is_clock_synchronized=None,
        data_dir_mode=None,
        data_dir_owner=None,
    )
    assert unsound(unknown) == []


def test_command_looks_at_this_host(tmp_path: Path) -> None:
    outcome = appliance("doctor", "--data-dir", tmp_path / "data", "--json")
    findings = json.loads(outcome.text)
    names = {each["check"] for each in findings}
    assert {
        "kernel",
        "open files",
        "shared memory",
        "memory",
        "file system",
        "disk space",
        "listener",
    } <= names
    assert outcome.code == int(any(each["level"] == "problem" for each in findings))
    people = appliance("doctor", "--data-dir", tmp_path / "data")
    assert people.code == outcome.code
    assert "pieces of advice" in people.text
    assert appliance("doctor", "--data-dir", tmp_path / "data", "--strict").code == 1, (
        "page-cache is advised against"
    )


def test_open_listener_is_a_problem_of_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "appliance.toml"
    config.write_text('host = "0.0.0.0"\ninsecure = true\n"unclean.leader.election.enable" = true\n')
    outcome = appliance("doctor", "--config", config, "--data-dir", tmp_path / "data")
    assert outcome.code == 1
    assert "without a login" in outcome.text
    assert "unclean.leader.election.enable" in outcome.text
