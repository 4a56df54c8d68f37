"""`python -m spark_connector.archive FILE.zip`: the one file for `spark-submit --py-files`.

In it is the code that an executor runs and nothing of the broker's processes. The compiled packages it stands on
(numpy, pyarrow, crc32c, cramjam, lz4, zstandard, msgspec, and numba where it is wanted) cannot be imported from an
archive: they must be installed where the executors run.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import appliance
import pyspark_appliance
import spark_connector

ROOMS: Final = ("protocol", "log", "config")
"""Of the package `appliance`: what the import contract lets the connector stand on, beside its single files."""

SINGLE_FILES: Final = ("__init__.py", "clock.py", "cluster.py", "errors.py", "journal.py")
# The same code makes the same archive, byte for byte: a cache that goes by content stays warm.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def build(target: Path) -> int:
    """Writes the archive to `target`, anew. Returns the number of files in it. Raises OSError."""
    files = sorted(_files())
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in files:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, source.read_bytes())
    return len(files)


def _files() -> Iterator[tuple[str, Path]]:
    """Name in the archive, and where it lies."""
    broker = Path(appliance.__file__).parent
    for name in SINGLE_FILES:
        yield f"appliance/{name}", broker / name
    for room in ROOMS:
        yield from _sources(broker / room, f"appliance/{room}")
    for package in (spark_connector, pyspark_appliance):
        yield from _sources(Path(str(package.__file__)).parent, package.__name__)


def _sources(directory: Path, name: str) -> Iterator[tuple[str, Path]]:
    for path in directory.rglob("*.py"):
        yield f"{name}/{path.relative_to(directory).as_posix()}", path


def main(arguments: Sequence[str]) -> int:
    """Exit code 2: asked for wrongly."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m spark_connector.archive FILE.zip", file=sys.stderr)
        return 2
    target = Path(arguments[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"{target}: {build(target)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
