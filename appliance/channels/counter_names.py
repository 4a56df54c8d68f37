"""What the eight counters of each role's row in the process table are called in `appliance status --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

COUNTER_NAMES: Final[Mapping[str, Sequence[str | None]]] = {
    "controller": ("topics", "partitions", "pending_changes", "isr_shrinks", "isr_expansions"),
    "cleaner": ("compacted_logs", "uncleanable_partitions", "rounds", "freed_bytes"),
    "coordinator": ("commits", "appends"),
    "purgatory": ("waiting", "watched_keys", "satisfied", "expired", "cancelled", "unsent"),
    "ioproc": (
        "failed_log_dirs_bits",
        "offline_partitions",
        "moving_partitions",
        None,
        None,
        None,
        None,
        "failed_log_dir_errno",
    ),
}
"""Kind of role → the names of counter 0, 1, …; None where a counter is unused. See the role's duty cycle."""


def named_counters(role: str, counters: Sequence[int]) -> dict[str, int]:
    """The counters of a role (`ioproc 0.0`) by their names."""
    names = COUNTER_NAMES.get(role.partition(" ")[0], ())
    return {name: value for name, value in zip(names, counters, strict=False) if name is not None}
