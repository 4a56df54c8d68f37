"""The log directories of each slot as a client names them, and what their owner says of them."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.channels.roles import owner_of
from appliance.channels.wiring import Attachment
from appliance.channels.worker_counters import has_failed
from appliance.netproc.worker_lines import WorkerLines


class LogDirs:
    """`paths`: slot → directories, told by their place; absolute, as they are written to clients."""

    __slots__ = ("_lines", "_rows", "paths")

    def __init__(
        self, directories: dict[int, tuple[Path, ...]], attachment: Attachment, lines: WorkerLines
    ) -> None:
        self.paths = {slot: tuple(map(os.path.abspath, paths)) for slot, paths in directories.items()}
        self._rows = {
            slot: attachment.process_table.row(attachment.wiring.process_row(owner_of(slot)))
            for slot in directories
        }
        self._lines = lines

    def index(self, slot: int, path: str) -> int | None:
        """The directory that a client calls `path`; None where the slot has none of that name."""
        paths = self.paths[slot]
        return paths.index(path) if path in paths else None

    def is_online(self, slot: int, directory: int) -> bool:
        """Whether it serves, as far as its worker knows; without its worker none does."""
        return self._lines.is_up(owner_of(slot)) and not has_failed(self._rows[slot], directory)
