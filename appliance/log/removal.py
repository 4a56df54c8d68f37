"""Files that nobody looks up any more and that wait for their removal, under their `.deleted` names.

The owner of a log makes a `Removal`; any thread may run it when its time has come, since it touches nothing but the
files it names. Killed before, the next opening of the partition removes whatever is `.deleted`, or queues it anew where
there are leases of readers (`reader_leases`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from appliance.log.faults import storage_faults
from appliance.log.file_names import DELETED, parse_segment_file_name
from appliance.log.reader_leases import Again, LeaseBook


@dataclass(frozen=True, slots=True)
class Removal:
    """Files to remove `delay_ms` from now (`file.delete.delay.ms`): a reader that only knows the name has that long.

    They hold records below `end_offset` and take `size_bytes`, which is what leases are about.
    """

    paths: tuple[Path, ...]
    delay_ms: int
    end_offset: int
    size_bytes: int

    def run(self) -> None:
        """Removes the files; those that are gone by now are passed over.

        Raises:
            StorageFault: one could not be removed; those after it are still there.
        """
        for path in self.paths:
            with storage_faults(path):
                path.unlink(missing_ok=True)

    def run_unless_held(self, leases: LeaseBook) -> Again | None:
        """As `run`, if no reader's lease forbids it; else when to try again.

        Raises:
            StorageFault: as `run`.
        """
        first = self.paths[0]
        again = leases.may_remove(
            first, folder=first.parent, end_offset=self.end_offset, size_bytes=self.size_bytes
        )
        if again is None:
            self.run()
        return again


def left_behind(directory: Path, end_offset: int) -> list[Removal]:
    """What an opening has left in a partition's directory for readers' leases; `end_offset` is the log end.

    Raises:
        StorageFault: the directory cannot be read.
    """
    found: dict[int, list[Path]] = {}
    with storage_faults(directory):
        for name in sorted(os.listdir(directory)):
            parsed = parse_segment_file_name(name)
            if parsed is not None and name.endswith(DELETED):
                found.setdefault(parsed[0], []).append(directory / name)
    return [Removal(tuple(paths), 0, end_offset, 0) for paths in found.values()]
