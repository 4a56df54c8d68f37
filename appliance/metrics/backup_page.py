"""What `appliance backup --metrics FILE` writes: series for the textfile collector of Prometheus' node_exporter.

No process of the appliance takes backups, so none can show them. The file has one target. An attempt that fails keeps
the series of the last success, so that their age says since when there is no backup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.metrics.exposition import Family, Kind, Page, escaped

_TARGET: Final = ("target",)


def _gauge(name: str, help: str, unit: str = "") -> Family:
    return Family(f"appliance_backup_{name}", Kind.GAUGE, help, _TARGET, unit)


SUCCEEDED = _gauge("succeeded", "1 if the last attempt has stored a backup, otherwise 0.")
ATTEMPT_TIME = _gauge(
    "last_attempt_timestamp_seconds",
    "Time at which the last attempt ended, in seconds since 1970.",
    "seconds",
)
SUCCESS_TIME = _gauge(
    "last_success_timestamp_seconds",
    "Time at which the last backup was stored, in seconds since 1970.",
    "seconds",
)
DURATION = _gauge("duration_seconds", "Time that the last backup took.", "seconds")
SIZE = _gauge("size_bytes", "Bytes that the last backup holds.", "bytes")
COPIED = _gauge(
    "copied_bytes",
    ("Bytes that the last backup has stored. The target already had the other bytes."),
    "bytes",
)
PARTITIONS = _gauge("partitions", "Partitions that the last backup holds.")

ALL: Final = (SUCCEEDED, ATTEMPT_TIME, SUCCESS_TIME, DURATION, SIZE, COPIED, PARTITIONS)
_OF_SUCCESS: Final = (SUCCESS_TIME, DURATION, SIZE, COPIED, PARTITIONS)


@dataclass(frozen=True, slots=True)
class Success:
    """A backup that was stored."""

    duration_s: float
    size_bytes: int
    copied_bytes: int
    partitions: int


def backup_page(target: str, success: Success | None, *, now_s: float, before: str = "") -> bytes:
    """Return the content of the file.

    Args:
        success: what was stored; None: the attempt has failed.
        now_s: the time, in seconds since 1970.
        before: the content of the file before, for the last success. A file of another target, or of something else,
            says nothing.
    """
    page = Page(openmetrics=False)
    page.gauge(SUCCEEDED, [(int(success is not None), (target,))])
    page.gauge(ATTEMPT_TIME, [(round(now_s, 3), (target,))])
    if success is not None:
        values = (
            round(now_s, 3),
            round(success.duration_s, 3),
            success.size_bytes,
            success.copied_bytes,
            success.partitions,
        )
        for family, value in zip(_OF_SUCCESS, values, strict=True):
            page.gauge(family, [(value, (target,))])
        return page.text()
    lines = before.splitlines()
    for family in _OF_SUCCESS:
        start = f'{family.name}{{target="{escaped(target)}"}} '
        for line in lines:
            if line.startswith(start) and (number := _number(line.removeprefix(start))) is not None:
                page.gauge(family, [(number, (target,))])
                break
    return page.text()


def _number(text: str) -> int | float | None:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return None
