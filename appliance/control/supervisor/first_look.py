"""What `serve` looks at before it writes a byte: is this directory the appliance's, and does it fit the settings?

A directory is the appliance's where one of MARKS is there. An empty or a missing one becomes the appliance's. Names
that a start writes before the marks (STARTED) do not count, because a first start may have been killed in between.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.config import Settings
from appliance.control.adoption.marker import MARKER
from appliance.errors import OperatorFault
from appliance.log.file_names import CLEAN_SHUTDOWN, META_PROPERTIES, parse_partition_directory_name

MARKS: Final = ("metadata.db", "metadata.sessions", "metadata.copy", "zookeeper.sessions", MARKER)
STARTED: Final = frozenset({".lock", "run.json", "run.json.new", "metadata.reserve", "lost+found", "secure"})
SLOTS_MAX: Final = 32
REMOVED_OK: Final = "slots.removed.ok"

_KAFKA_MARKS: Final = frozenset({META_PROPERTIES, CLEAN_SHUTDOWN, "__cluster_metadata-0"})
_SLOT_NAME: Final = re.compile(r"slot-[0-9]+(\.log-dirs\.json(\.tmp)?)?")
_TOLD_MAX: Final = 3


def refuse_foreign(settings: Settings) -> None:
    """Raises OperatorFault where the data directory has something in it and is none of the appliance's."""
    data_dir = settings.data_dir
    names = _names(data_dir)
    if names is None or any(mark in names for mark in MARKS):
        return
    logs = [each for slot in range(settings.slots) for each in settings.log_directories(slot)]
    ours = STARTED | {each.relative_to(data_dir).parts[0] for each in logs if data_dir in each.parents}
    foreign = sorted(name for name in names if name not in ours and _SLOT_NAME.fullmatch(name) is None)
    if not foreign:
        return
    if _is_kafkas(data_dir, names):
        raise OperatorFault(
            f"{data_dir} is a log directory of Apache Kafka; nothing was written into it. To take its topics over, stop"
            f" Kafka and run: appliance adopt {data_dir} --data-dir NEW_DIRECTORY"
        )
    raise OperatorFault(
        f"{data_dir} is not empty and no data directory of the appliance ({_some(foreign)}); nothing was written into"
        " it. Choose an empty or a new directory"
    )


def refuse_fewer_slots(settings: Settings) -> None:
    """Raises OperatorFault where slots that are not in `settings` have partitions here, unless that is allowed."""
    if settings.broker.slots_removed_ok:
        return
    left = {slot: found for slot in range(settings.slots, SLOTS_MAX) if (found := _held_by(settings, slot))}
    if not left:
        return
    slots, wanted = ", ".join(map(str, left)), max(left) + 1
    raise OperatorFault(
        f"slots = {settings.slots}, but {settings.data_dir} has partitions on {'slots' if len(left) > 1 else 'slot'}"
        f" {slots} ({_some(sorted({name for found in left.values() for name in found}))}), which would be unavailable."
        f" Start with --slots {wanted}, or say that it is meant: --set {REMOVED_OK}=true"
    )


def _held_by(settings: Settings, slot: int) -> set[str]:
    """Partitions in the directories of a slot; the directory itself where one that was in use cannot be read."""
    data_dir = settings.data_dir
    known = _known(data_dir / f"slot-{slot}.log-dirs.json")
    configured = (
        settings.log_directories(slot) if settings.slots > 1 or "{slot}" in (settings.log_dirs or "") else ()
    )
    found: set[str] = set()
    for directory in {data_dir / f"slot-{slot}", *configured, *known}:
        names = _names(directory)
        if names is None:
            if directory in known:
                found.add(str(directory))
            continue
        found |= {name for name in names if parse_partition_directory_name(name) is not None}
    return found


def _known(path: Path) -> set[Path]:
    """The directories that a slot has used (`known_directories.py`)."""
    with suppress(OSError, ValueError, TypeError):
        return set(map(Path, json.loads(path.read_bytes())))
    return set()


def _is_kafkas(data_dir: Path, names: Iterable[str]) -> bool:
    there = set(names)
    if there & _KAFKA_MARKS:
        return True
    return any(
        parse_partition_directory_name(name) is not None
        and any(each.endswith(".log") for each in _names(data_dir / name) or ())
        for name in there
    )


def _names(directory: Path) -> set[str] | None:
    """What is in it; None where it is not there. Raises OperatorFault where it cannot be looked at."""
    try:
        return set(os.listdir(directory))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OperatorFault(f"{directory}: {error.strerror}") from error


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _TOLD_MAX} more" if len(names) > _TOLD_MAX else ""
    return f"{', '.join(names[:_TOLD_MAX])}{more}"
