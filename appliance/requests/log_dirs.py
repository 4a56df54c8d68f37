"""The log directories of each slot as a client names them, and what their workers say of them."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.channels.roles import workers_of
from appliance.channels.wiring import Attachment
from appliance.channels.worker_counters import has_failed
from appliance.requests.worker_lines import WorkerClient


class LogDirs:
    """`paths`: slot → directories, told by their place; absolute, as they are written to clients."""

    __slots__ = ("_lines", "_rows", "paths")

    def __init__(
        self, directories: dict[int, tuple[Path, ...]], attachment: Attachment, lines: WorkerClient
    ) -> None:
        self.paths = {slot: tuple(map(os.path.abspath, paths)) for slot, paths in directories.items()}
        wiring = attachment.wiring
        self._rows = {
            slot: {
                worker: attachment.process_table.row(wiring.process_row(worker))
                for worker in workers_of(slot, workers=wiring.settings.io.workers)
            }
            for slot in directories
        }
        self._lines = lines

    def index(self, slot: int, path: str) -> int | None:
        """The directory that a client calls `path`; None where the slot has none of that name."""
        paths = self.paths[slot]
        return paths.index(path) if path in paths else None

    def is_online(self, slot: int, directory: int) -> bool:
        """Whether it serves, as far as its slot's workers know; without any worker none does.

        It has failed as soon as one of them has found so: the others will at their next step there.
        """
        living = [row for worker, row in self._rows[slot].items() if self._lines.is_up(worker)]
        return bool(living) and not any(has_failed(row, directory) for row in living)
