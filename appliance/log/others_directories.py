"""What is asked of the log directories of other slots, whose owners have them open."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from appliance.log.file_names import LOG, parse_segment_file_name

DirectoriesOf = Callable[[int], Sequence[Path]]
"""Slot → its log directories."""


def first_base_offset(partition: Path) -> int | None:
    """Where the first segment with anything in it begins, in a partition's directory that somebody else may have open;
    None where there is none."""
    with suppress(OSError), os.scandir(partition) as entries:
        found = (
            parse_segment_file_name(entry.name)
            for entry in entries
            if entry.name.endswith(LOG) and entry.stat().st_size
        )
        return min((each[0] for each in found if each is not None), default=None)
    return None
