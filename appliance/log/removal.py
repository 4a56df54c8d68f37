"""Files that nobody looks up any more and that wait for their removal, under their `.deleted` names.

The owner of a log makes a `Removal`; any thread may run it when its time has come, since it touches nothing but the
files it names. Killed before, the next opening of the partition removes whatever is `.deleted`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from appliance.log.faults import storage_faults


@dataclass(frozen=True, slots=True)
class Removal:
    """Files to remove `delay_ms` from now (`file.delete.delay.ms`): a reader that only knows the name has that long."""

    paths: tuple[Path, ...]
    delay_ms: int

    def run(self) -> None:
        """Removes the files; those that are gone by now are passed over.

        Raises:
            StorageFault: one could not be removed; those after it are still there.
        """
        for path in self.paths:
            with storage_faults(path):
                path.unlink(missing_ok=True)
