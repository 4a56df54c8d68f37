"""What a process holds, as the kernel lists it: open descriptors with their mode, and shared mappings.

Read from /proc/PID/fd, /proc/PID/fdinfo and /proc/PID/maps. A path is told as the kind of thing that it is, so that a
test can compare it with a table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.support.broker import Appliance

READ: Final = "r"
WRITE: Final = "w"

_DELETED: Final = " (deleted)"
_ROW_PAGE_BYTES: Final = 4096
# address, permissions, offset, device, inode, path
_MAPPING: Final = re.compile(
    r"(?P<first>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<mode>\S{4}) (?P<offset>[0-9a-f]+) \S+ \d+ +(?P<path>/.*)"
)


@dataclass(frozen=True, slots=True, order=True)
class Holding:
    """`what` it is and whether it can be written (`w`) or only read (`r`); `path` says which one."""

    what: str
    access: str
    path: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        return self.what, self.access


@dataclass(frozen=True, slots=True)
class Places:
    """Where the files of an instance are."""

    data: Path
    runtime: Path
    zeromq: str

    def kind_of(self, path: str, token: str) -> str:
        """What a path is to the process `token`, such as `netproc0`."""
        path = path.removesuffix(_DELETED)
        if path.startswith(f"{self.runtime}/"):
            return _shared_memory(path.rpartition("/")[2], token)
        if path.startswith(f"{self.data}/"):
            return _data_file(path.removeprefix(f"{self.data}/"))
        if path == f"{self.zeromq}.lock":
            return "ZeroMQ lock"
        if path.startswith("/memfd:appliance-lane"):
            return "lane"
        return path


def _shared_memory(name: str, token: str) -> str:
    kind, _, parties = name.partition("-")
    mine = token in [party.rpartition(".g")[0] for party in parties.split("-")]
    if kind in {"ring", "pool"}:
        return f"{'own' if mine else 'foreign'} {kind}"
    if name == "logs":
        return "log sizes"
    return "image" if kind == "image" else name


def _data_file(name: str) -> str:
    folder, _, file = name.rpartition("/")
    if not folder:
        if name.startswith("slot-"):
            return "log directory"
        return "lock of the data directory" if name == ".lock" else "metadata"
    if folder == "audit":
        return "audit journal"
    if folder == "shared-memory":
        return "lane door"
    if file.startswith(".lock"):
        return "lock of a log directory"
    if file.endswith(".cleaned"):
        return "compacted file"
    return "log file"


def places_of(broker: Appliance, *, zeromq: str) -> Places:
    """Where the files of a running instance are."""
    text = (broker.data_dir / "runtime-directory").read_text()
    return Places(broker.data_dir.resolve(), Path(text.strip()), zeromq)


def descriptors(pid: int, places: Places, token: str) -> Iterator[Holding]:
    """Everything open in a process but its standard streams."""
    for entry in os.listdir(f"/proc/{pid}/fd"):
        if int(entry) <= 2:
            continue
        with suppress(FileNotFoundError):
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
            info = Path(f"/proc/{pid}/fdinfo/{entry}").read_text()
            flags = int(info.split("flags:")[1].split()[0], 8)
            access = READ if flags & os.O_ACCMODE == os.O_RDONLY else WRITE
            if target.startswith(("socket:", "pipe:")):
                yield Holding(target.partition(":")[0], WRITE)
            elif target.startswith("anon_inode:"):
                yield Holding(target.removeprefix("anon_inode:").strip("[]"), WRITE)
            elif target != "/dev/null":
                yield Holding(places.kind_of(target, token), access, target)


def shared_mappings(pid: int, places: Places, token: str, *, row: int) -> Iterator[Holding]:
    """Every shared mapping of a file. A writable one of the process table counts as the process's own row where it is
    that page and nothing else.
    """
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        found = _MAPPING.fullmatch(line)
        if found is None or found["mode"][3] != "s":
            continue
        access = WRITE if found["mode"][1] == "w" else READ
        what = places.kind_of(found["path"], token)
        length = int(found["end"], 16) - int(found["first"], 16)
        if access == READ and what == found["path"]:
            continue  # a table of the C library
        if what == "processes" and access == WRITE:
            is_own_row = (int(found["offset"], 16), length) == (row * _ROW_PAGE_BYTES, _ROW_PAGE_BYTES)
            what = "own row" if is_own_row else "rows of others"
        yield Holding(what, access, found["path"])


def listens(pid: int) -> bool:
    """Whether a process holds a listening TCP socket."""
    return any(each.status == psutil.CONN_LISTEN for each in psutil.Process(pid).net_connections("tcp"))


def status_word(pid: int, name: str) -> int:
    """A hexadecimal word of /proc/PID/status, such as CapEff."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.partition(":")[2], 16)
    raise KeyError(name)
