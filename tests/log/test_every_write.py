"""A scripted run, cut short after every operation on its files, and with every operation failing once.

What is found again holds every acknowledged record, in order, nothing foreign, and can be appended to.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.batch import PLACEMENT_BYTES
from tests.log.batches import batch_of, read_all
from tests.log.file_history import (
    Allocate,
    Create,
    Fails,
    Fault,
    FileHistory,
    FileTree,
    MakeDirectory,
    Note,
    Operation,
    Rename,
    SetSize,
    Short,
    SyncDirectory,
    SyncFile,
    Unlink,
    Write,
)
from tests.log.scripted_run import Promise, ScriptedRun, opened

TORN_AT_MOST = 3
"""Torn lengths of one write that are tried, beside none and all of it."""


def recorded(root: Path, faults: dict[int, Fault] | None = None) -> list[Operation]:
    """The operations of the script."""
    with FileHistory(root, faults=faults) as history:
        ScriptedRun(root, history).play()
    history.check()
    return history.operations


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[Operation]:
    return recorded(tmp_path_factory.mktemp("recorded") / "root")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is lost here, so nothing has to reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


def values_of(log: PartitionLog) -> list[bytes | None]:
    """Of each offset its value; None for a marker, which is all that a log may hold and a reader not see."""
    found: list[bytes | None] = [None] * log.log_end_offset
    for record in read_all(log):
        found[record.offset] = record.value if record.value and b":" in record.value else None
    return found


def assert_kept(root: Path, promise: Promise) -> None:
    """Opens what a dead process left; twice, since a recovery is the next one's past."""
    for _ in range(2):
        directory, log = opened(root)
        log.check()
        found = values_of(log)
        assert len(found) >= promise.floor, "an acknowledged record is lost"
        assert tuple(found) == promise.line[: len(found)]
        aborted = log.aborted_transactions(0, upper_bound=log.log_end_offset)
        assert len(aborted) >= promise.aborted
        directory.abandon()
    directory, log = opened(root)
    end = log.log_end_offset
    assert log.append(batch_of([b"after"]), leader_epoch=9).base_offset == end
    directory.close()
    directory, log = opened(root)
    assert directory.was_clean
    assert log.log_end_offset == end + 1
    directory.abandon()


def torn(operation: Operation) -> Iterator[Operation]:
    """What a write may have come to when its process died in it."""
    if isinstance(operation, Write):
        size_bytes = len(operation.data)
        for part in sorted({size_bytes * number // (TORN_AT_MOST + 1) for number in range(TORN_AT_MOST + 1)}):
            if part:
                yield Write(operation.inode, operation.offset, operation.data[:part], operation.mapped)


def every_state(operations: list[Operation]) -> Iterator[tuple[str, FileTree, Promise]]:
    """(name, files, promise) after every prefix, and after every prefix and a part of the next write."""
    tree = FileTree()
    promise = Promise((), 0)
    yield "nothing", tree, promise
    for number, operation in enumerate(operations):
        for part in torn(operation):
            partly = tree.copy()
            partly.apply(part)
            yield f"{number}, torn: {part}", partly, promise
        tree.apply(operation)
        if isinstance(operation, Note):
            promise = operation.what if isinstance(operation.what, Promise) else promise
        else:
            yield f"{number}: {operation}", tree, promise


def test_the_script_does_everything_that_a_log_does_to_files(operations: list[Operation]) -> None:
    kinds = {type(operation).__name__ for operation in operations}
    assert kinds >= {
        "Create",
        "Write",
        "SetSize",
        "Allocate",
        "Rename",
        "Unlink",
        "MakeDirectory",
        "SyncFile",
    }
    stores = [operation for operation in operations if isinstance(operation, Write) and operation.mapped]
    assert any(len(operation.data) < PLACEMENT_BYTES for operation in stores), (
        "a placement is a store of its own"
    )
    paths = {operation.path for operation in operations if hasattr(operation, "path")}
    for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".kafka_cleanshutdown"):
        assert any(suffix in path for path in paths), suffix


def test_every_prefix_of_the_writes_recovers_to_all_that_was_acknowledged(
    tmp_path: Path, operations: list[Operation]
) -> None:
    count = 0
    for number, (name, tree, promise) in enumerate(every_state(operations)):
        root = tmp_path / str(number)
        tree.write_to(root)
        try:
            assert_kept(root, promise)
        except Exception as fault:
            raise AssertionError(f"after operation {name}") from fault
        shutil.rmtree(root)
        count += 1
    assert count > len(operations) / 2


FAULTS: dict[str, tuple[Fault, tuple[type[Operation], ...]]] = {
    "EIO": (Fails(errno.EIO), (Write, SetSize, Rename, Unlink, SyncFile, SyncDirectory)),
    "ENOSPC": (Fails(errno.ENOSPC), (Create, Write, Allocate, Rename, MakeDirectory)),
    "short": (Short(0.4), (Write,)),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_failing_operation_costs_nothing_that_was_acknowledged(
    tmp_path: Path, operations: list[Operation], kind: str
) -> None:
    fault, operations_that_meet_it = FAULTS[kind]
    costly: list[str] = []
    count = 0
    for number, operation in enumerate(operations):
        if not isinstance(operation, operations_that_meet_it):
            continue
        if isinstance(operation, Write) and operation.mapped:
            continue  # a store cannot fail: its room was taken
        root = tmp_path / str(number)
        try:
            with FileHistory(root, faults={number: fault}) as history:
                promise = ScriptedRun(root, history).play()
            history.check()
            assert_kept(root, promise)
        except Exception as error:
            costly.append(f"{kind} at operation {number}, {operation}: {error!r}")
        shutil.rmtree(root)
        count += 1
    assert not costly, "\n".join(costly)
    assert count
