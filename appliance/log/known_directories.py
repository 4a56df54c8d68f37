"""Which log directories a slot has used: an empty mount point looks like a new disk."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.errors import CorruptFile, StorageFault
from appliance.log.checkpoint import replace_file
from appliance.log.faults import storage_faults
from appliance.log.meta_properties import directory_id

FILES: Final = "slot-*.log-dirs.json"
"""In the data directory, one for each slot (`Settings.known_directories`)."""


class KnownDirectories:
    """Which directory (its id in meta.properties) a slot has used at which path: a small JSON, `path → id`."""

    __slots__ = ("_ids", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids: dict[str, str] = {}
        with storage_faults(path), suppress(FileNotFoundError):
            try:
                self._ids = dict(json.loads(path.read_text()))
            except ValueError:
                raise CorruptFile(f"{path} is no JSON of paths and directory ids") from None

    def check(self, directory: Path) -> None:
        """Raises StorageFault where the directory that was used at this path is not there any more."""
        known = self._ids.get(str(directory))
        if known is not None and known != directory_id(directory):
            raise StorageFault(
                f"{directory} is not the directory that was used there: is its disk mounted? To start with an empty"
                f" one, remove its line from {self._path}"
            )

    @property
    def paths(self) -> list[Path]:
        """The directories that were used, in order."""
        return [Path(path) for path in sorted(self._ids)]

    def note(self, directory: Path) -> None:
        """Writes down that this directory is in use.

        Raises:
            StorageFault: it failed.
        """
        identity = directory_id(directory)
        if identity is not None and self._ids.get(str(directory)) != identity:
            self._ids[str(directory)] = identity
            replace_file(self._path, (json.dumps(self._ids, indent=1, sort_keys=True) + "\n").encode())


def known_directories(path: Path | None) -> KnownDirectories | None:
    """What is written down at `path`; None where nothing is.

    Raises:
        CorruptFile, StorageFault: it cannot be read.
    """
    return None if path is None else KnownDirectories(path)


def used_directories(data_dir: Path) -> list[Path]:
    """The log directories that the slots of a data directory use; none where `log.dirs` is not set.

    Raises:
        StorageFault: one of them is not there, or is not the one that was used. CorruptFile: a file does not parse.
    """
    found = []
    for path in sorted(data_dir.glob(FILES)):
        known = KnownDirectories(path)
        for directory in known.paths:
            if directory_id(directory) is None:
                raise StorageFault(
                    f"{directory} is a log directory of {path}, and is not there: is its disk mounted? To read without"
                    " it, name the other log directories one by one"
                )
            known.check(directory)
            found.append(directory)
    return found
