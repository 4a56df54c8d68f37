"""What a run did to the files below a directory, operation by operation, and the files after any prefix of it.

    with FileHistory(root) as history:        every call of `os` that changes something below `root` is noted, and
        …run…                                 every store into a mapping of a file there
        history.note("acknowledged 7")        what the run was told, in its place between the operations
    history.check()                           the operations alone give the files that are there

    tree = FileTree()
    for operation in history.operations:      the files after each prefix: what a process leaves that dies there
        tree.apply(operation)
        tree.write_to(elsewhere)

Files are inodes and names are apart from them, so that who simulates a power loss can keep the data and lose the
name. A mapping is compared with what it held before whenever a line of the modules that write through one has
run: two stores are two operations, in their order. Calls can be made to fail (`faults`). One history at a time;
threads may take part.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

import numpy as np

_STORING_MODULES: Final = ("segment_file.py", "index_file.py", "offset_index.py", "time_index.py")
_LOG_ROOM: Final = str(Path("appliance", "log"))


@dataclass(frozen=True, slots=True)
class Create:
    """An empty file under a name."""

    inode: int
    path: str


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes into a file, which grows if they reach beyond its end. `mapped`: stored, not written."""

    inode: int
    offset: int
    data: bytes
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class SetSize:
    """A file cut, or grown with zeros."""

    inode: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Allocate:
    """A file grown with zeros to a size, never cut."""

    inode: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rename:
    """A file or directory under another name; a file of that name is replaced."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Link:
    """One more name of a file."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name is gone."""

    path: str


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    path: str


@dataclass(frozen=True, slots=True)
class RemoveDirectory:
    path: str


@dataclass(frozen=True, slots=True)
class SyncFile:
    """fsync or fdatasync of a file: its data so far is on the disk."""

    inode: int


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """fsync of a directory: its names so far are on the disk."""

    path: str


@dataclass(frozen=True, slots=True)
class Note:
    """Nothing happened to a file; the run was told this."""

    what: Any


Operation = (
    Create
    | Write
    | SetSize
    | Allocate
    | Rename
    | Link
    | Unlink
    | MakeDirectory
    | RemoveDirectory
    | SyncFile
    | SyncDirectory
    | Note
)


@dataclass(frozen=True, slots=True)
class Fails:
    """The call fails with an errno and changes nothing."""

    number: int = errno.EIO


@dataclass(frozen=True, slots=True)
class Short:
    """A write takes only this share of its bytes, and at least one."""

    share: float = 0.5


Fault = Fails | Short


class FileTree:
    """Files, directories and what they hold, in memory. Paths are relative to the root, which is `.`."""

    def __init__(self) -> None:
        self.directories: set[str] = set()
        self.names: dict[str, int] = {}
        self.contents: dict[int, bytearray] = {}

    def apply(self, operation: Operation) -> None:
        """Does to this tree what the operation did."""
        match operation:
            case Create(inode, path):
                self.names[path] = inode
                self.contents[inode] = bytearray()
            case Write(inode, offset, data):
                content = self.contents[inode]
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data
            case SetSize(inode, size_bytes):
                content = self.contents[inode]
                content.extend(bytes(max(0, size_bytes - len(content))))
                del content[size_bytes:]
            case Allocate(inode, size_bytes):
                content = self.contents[inode]
                content.extend(bytes(max(0, size_bytes - len(content))))
            case Rename(path, target) if path in self.directories:
                self._rename_directory(path, target)
            case Rename(path, target):
                self.names[target] = self.names.pop(path)
            case Link(path, target):
                self.names[target] = self.names[path]
            case Unlink(path):
                del self.names[path]
            case MakeDirectory(path):
                self.directories.add(path)
            case RemoveDirectory(path):
                self.directories.remove(path)
            case SyncFile() | SyncDirectory() | Note():
                pass

    def _rename_directory(self, path: str, target: str) -> None:
        def renamed(name: str) -> str:
            return target + name[len(path) :] if name == path or name.startswith(path + "/") else name

        self.directories = {renamed(name) for name in self.directories}
        self.names = {renamed(name): inode for name, inode in self.names.items()}

    def files(self) -> dict[str, bytes]:
        """Content by path."""
        return {name: bytes(self.contents[inode]) for name, inode in self.names.items()}

    def copy(self) -> FileTree:
        """A tree of its own."""
        other = FileTree()
        other.directories = set(self.directories)
        other.names = dict(self.names)
        other.contents = {inode: bytearray(content) for inode, content in self.contents.items()}
        return other

    def write_to(self, root: Path) -> None:
        """Makes these files below `root`, which must not hold others."""
        root.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.directories):
            (root / path).mkdir(exist_ok=True)
        for path, content in self.files().items():
            (root / path).write_bytes(content)


def tree_of(root: Path) -> FileTree:
    """What is on the disk below a directory. Each name counts as a file of its own."""
    tree = FileTree()
    for inode, path in enumerate(sorted(root.rglob("*"))):
        name = str(path.relative_to(root))
        if path.is_dir():
            tree.directories.add(name)
        else:
            tree.names[name] = inode
            tree.contents[inode] = bytearray(path.read_bytes())
    return tree


class FileHistory:
    """Records while it is entered. `faults` says which operation, by its number, is to fail and how.

    The root must be empty or absent at first. A sync is noted and not waited for.
    """

    def __init__(self, root: Path, *, faults: Mapping[int, Fault] | None = None) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self._faults = dict(faults or {})
        self._prefix = os.path.abspath(root)
        self._lock = threading.RLock()
        self._inodes: dict[tuple[int, int], int] = {}
        self._inodes_given = 0
        self._descriptors: dict[int, int] = {}
        self._directories: dict[int, str] = {}
        self._mappings: list[_Mapping] = []
        self._originals: dict[str, Any] = {}
        if root.is_dir() and any(root.iterdir()):
            raise ValueError(f"{root} holds files already")

    def note(self, what: Any) -> None:
        """Puts a word of the run between the operations."""
        with self._lock:
            self._look_at_mappings()
            self.operations.append(Note(what))

    def check(self) -> None:
        """Replays everything and compares it with the disk: nothing was done behind our back."""
        tree = FileTree()
        for operation in self.operations:
            tree.apply(operation)
        assert tree.files() == tree_of(self.root).files()
        assert tree.directories | {"."} == tree_of(self.root).directories | {"."}

    # Entering and leaving

    def __enter__(self) -> Self:
        for name in (
            "open",
            "close",
            "write",
            "pwrite",
            "pwritev",
            "ftruncate",
            "truncate",
            "posix_fallocate",
            "rename",
            "replace",
            "link",
            "unlink",
            "remove",
            "mkdir",
            "rmdir",
            "fsync",
            "fdatasync",
        ):
            self._originals[name] = getattr(os, name)
            setattr(os, name, getattr(self, f"_{name}"))
        self._originals["mmap"] = mmap.mmap
        history = self

        class Mapped(mmap.mmap):
            """A mapping whose stores are seen."""

            def __new__(cls, fileno: int, length: int, **options: Any) -> Mapped:
                made = super().__new__(cls, fileno, length, **options)
                history._mapped(made, fileno, options.get("offset", 0))
                return made

            def close(self) -> None:
                history._unmapped(self)
                super().close()

        mmap.mmap = Mapped  # type: ignore[misc, assignment]
        self._tracer = sys.gettrace()
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._tracer)
        threading.settrace(None)
        self._look_at_mappings()
        mmap.mmap = self._originals.pop("mmap")  # type: ignore[misc]
        for name, original in self._originals.items():
            setattr(os, name, original)

    # Paths, descriptors, inodes

    def _relative(self, path: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            return self._directories.get(path)
        text = os.fsdecode(path)
        if dir_fd is not None:
            if dir_fd not in self._directories:
                return None
            text = os.path.join(self._prefix, self._directories[dir_fd], text)
        text = os.path.abspath(text)
        if text == self._prefix:
            return "."
        return text[len(self._prefix) + 1 :] if text.startswith(self._prefix + os.sep) else None

    def _inode(self, descriptor: int) -> int:
        status = os.fstat(descriptor)
        key = status.st_dev, status.st_ino
        if key not in self._inodes:
            self._inodes_given += 1
            self._inodes[key] = self._inodes_given
        return self._inodes[key]

    def _forget(self, path: Any) -> None:
        """The last name of a file goes: its number may come again, for another file."""
        status = os.lstat(path)
        if status.st_nlink == 1:
            self._inodes.pop((status.st_dev, status.st_ino), None)

    # Recording

    def _say(self, operation: Operation) -> float | None:
        """Notes an operation that is about to happen, or fails it; the share that a write may take."""
        self._look_at_mappings()
        fault = self._faults.pop(len(self.operations), None)
        if isinstance(fault, Fails):
            self.operations.append(Note(f"failed: {type(operation).__name__}"))
            raise OSError(fault.number, os.strerror(fault.number))
        if isinstance(fault, Short) and isinstance(operation, Write) and len(operation.data) > 1:
            return fault.share
        self.operations.append(operation)
        return None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        path = frame.f_code.co_filename
        if path.endswith(_STORING_MODULES) and _LOG_ROOM in path:
            return self._line
        return None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        with self._lock:
            self._look_at_mappings()
        return self._line

    def _mapped(self, mapping: mmap.mmap, descriptor: int, offset: int) -> None:
        with self._lock:
            if descriptor in self._descriptors:
                self._look_at_mappings()
                self._mappings.append(_Mapping(mapping, self._descriptors[descriptor], offset, mapping[:]))

    def _unmapped(self, mapping: mmap.mmap) -> None:
        with self._lock:
            self._look_at_mappings()
            self._mappings = [each for each in self._mappings if each.mapping is not mapping]

    def _look_at_mappings(self) -> None:
        for each in self._mappings:
            content = each.mapping[:]
            if content != each.held:
                now, before = np.frombuffer(content, np.uint8), np.frombuffer(each.held, np.uint8)
                changed = np.flatnonzero(now != before)
                first, last = int(changed[0]), int(changed[-1])
                each.held = content
                self.operations.append(
                    Write(each.inode, each.offset + first, content[first : last + 1], mapped=True)
                )

    def _written(self, inode: int) -> None:
        """A file changed by a call: its mappings hold that now, and nobody stored it."""
        for each in self._mappings:
            if each.inode == inode:
                each.held = each.mapping[:]

    # The calls

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            name = self._relative(path, dir_fd)
            real = self._originals["open"]
            if name is None:
                return int(real(path, flags, mode, dir_fd=dir_fd))
            full = os.path.join(self._prefix, name)
            is_new = bool(flags & os.O_CREAT) and not os.path.lexists(full)
            if is_new:
                self._say(Create(self._inodes_given + 1, name))
            descriptor = int(real(full, flags, mode))
            if os.path.isdir(full):
                self._directories[descriptor] = name
                return descriptor
            inode = self._descriptors[descriptor] = self._inode(descriptor)
            if is_new:
                assert self.operations[-1] == Create(inode, name)
            elif flags & os.O_TRUNC:
                self._say(SetSize(inode, 0))
            return descriptor

    def _close(self, descriptor: int) -> None:
        with self._lock:
            self._descriptors.pop(descriptor, None)
            self._directories.pop(descriptor, None)
            self._originals["close"](descriptor)

    def _put(self, descriptor: int, data: bytes, offset: int) -> int:
        inode = self._descriptors[descriptor]
        share = self._say(Write(inode, offset, data))
        if share is not None:
            data = data[: max(1, int(len(data) * share))]
            self.operations.append(Write(inode, offset, data))
        taken = int(self._originals["pwrite"](descriptor, data, offset))
        assert taken == len(data), "the disk of the test itself is full"
        self._written(inode)
        return taken

    def _write(self, descriptor: int, data: Any) -> int:
        with self._lock:
            if descriptor not in self._descriptors:
                return int(self._originals["write"](descriptor, data))
            at = os.lseek(descriptor, 0, os.SEEK_CUR)
            taken = self._put(descriptor, bytes(data), at)
            os.lseek(descriptor, at + taken, os.SEEK_SET)
            return taken

    def _pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        with self._lock:
            if descriptor not in self._descriptors:
                return int(self._originals["pwrite"](descriptor, data, offset))
            return self._put(descriptor, bytes(data), offset)

    def _pwritev(self, descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        with self._lock:
            if descriptor not in self._descriptors:
                return int(self._originals["pwritev"](descriptor, buffers, offset, flags))
            return self._put(descriptor, b"".join(bytes(each) for each in buffers), offset)

    def _ftruncate(self, descriptor: int, length: int) -> None:
        with self._lock:
            if descriptor in self._descriptors:
                inode = self._descriptors[descriptor]
                self._say(SetSize(inode, length))
            self._originals["ftruncate"](descriptor, length)

    def _truncate(self, path: Any, length: int) -> None:
        with self._lock:
            if isinstance(path, int) or self._relative(path) is None:
                self._originals["truncate"](path, length)
                return
            descriptor = int(self._originals["open"](path, os.O_RDWR | os.O_CLOEXEC))
            try:
                self._say(SetSize(self._inode(descriptor), length))
                self._originals["ftruncate"](descriptor, length)
            finally:
                self._originals["close"](descriptor)

    def _posix_fallocate(self, descriptor: int, offset: int, length: int) -> None:
        with self._lock:
            if descriptor in self._descriptors:
                self._say(Allocate(self._descriptors[descriptor], offset + length))
            self._originals["posix_fallocate"](descriptor, offset, length)

    def _rename(self, source: Any, target: Any, **options: Any) -> None:
        with self._lock:
            names = self._relative(source), self._relative(target)
            if names[0] is not None and names[1] is not None:
                self._say(Rename(names[0], names[1]))
                if os.path.isfile(target):
                    self._forget(target)
            self._originals["rename"](source, target, **options)

    _replace = _rename

    def _link(self, source: Any, target: Any, **options: Any) -> None:
        with self._lock:
            names = self._relative(source), self._relative(target)
            if names[0] is not None and names[1] is not None:
                self._say(Link(names[0], names[1]))
            self._originals["link"](source, target, **options)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            name = self._relative(path, dir_fd)
            if name is None:
                self._originals["unlink"](path, dir_fd=dir_fd)
                return
            full = os.path.join(self._prefix, name)
            if os.path.lexists(full):
                self._say(Unlink(name))
                self._forget(full)
            self._originals["unlink"](full)

    _remove = _unlink

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            name = self._relative(path, dir_fd)
            if name is not None and name != "." and not os.path.lexists(path):
                self._say(MakeDirectory(name))
            self._originals["mkdir"](path, mode, dir_fd=dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            name = self._relative(path, dir_fd)
            if name is not None:
                self._say(RemoveDirectory(name))
            self._originals["rmdir"](path, dir_fd=dir_fd)

    def _fsync(self, descriptor: int) -> None:
        with self._lock:
            if descriptor in self._directories:
                self._say(SyncDirectory(self._directories[descriptor]))
            elif descriptor in self._descriptors:
                self._say(SyncFile(self._descriptors[descriptor]))
            else:
                self._originals["fsync"](descriptor)

    def _fdatasync(self, descriptor: int) -> None:
        # Of our own files none needs the wait: the history is what is asked about, not the disk.
        self._fsync(descriptor)


@dataclass(slots=True)
class _Mapping:
    mapping: mmap.mmap
    inode: int
    offset: int
    held: bytes
