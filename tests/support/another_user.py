"""Another user of the host, `nobody`: a forked process without privileges that tries what such a user can.

    plant   before the start: takes every name that can be computed from the data directory's path
    attack  while it runs: opens, locks, links, connects, creates, signals, traces; what succeeded is the answer

What it locked it holds until it is told to `leave`. It is forked and not executed, since `nobody` may not be able to
read the interpreter.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from appliance.channels.wiring import instance_name

NOBODY: Final = 65534
SHARED: Final = Path("/dev/shm")
TEMPORARY: Final = Path("/tmp")
GENERATIONS: Final = 4
IMAGES: Final = 200
ROLES: Final = (
    "netproc0",
    "netproc1",
    "coordinator",
    "controller",
    "ioproc0.0",
    "purgatory",
    "cleaner",
    "acceptor",
)
ANSWER_BYTES_MAX: Final = 1 << 24

# linux/ptrace.h, and system calls of x86-64 that the C library has no name for.
_PTRACE_ATTACH: Final = 16
_PTRACE_SEIZE: Final = 0x4206
_PIDFD_GETFD: Final = 438
_DESCRIPTORS_TRIED: Final = 40
_PAGE_BYTES: Final = 4096


class AnotherUser:
    """The process, at the test's end of a socket pair. Used as a context manager."""

    def __init__(
        self, data_dir: Path, uids: tuple[int, ...], *, gid: int = NOBODY, endpoints: tuple[Path, ...] = ()
    ) -> None:
        """`endpoints`: paths of Unix sockets beside those that can be guessed."""
        self._data_dir = data_dir
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                self._here.close()
                signal.alarm(600)
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                os.umask(0)
                _obey(there, _Attacker(data_dir, uids, endpoints))
                code = 0
            finally:
                os._exit(code)
        there.close()
        self._file = self._here.makefile("rw")

    def __enter__(self) -> AnotherUser:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._here.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        _remove_planted(self._data_dir)

    def plant(self) -> int:
        """Take names before the start; return how many could be taken."""
        return int(self._ask("plant"))

    def attack(self) -> list[str]:
        """Try everything once; return what succeeded, one line each."""
        done: list[str] = self._ask("attack")
        return done

    def _ask(self, word: str) -> Any:
        self._file.write(f"{word}\n")
        self._file.flush()
        line = self._file.readline()
        assert line, f"the other user's process died of {word}"
        return json.loads(line)


def _obey(sock: socket.socket, attacker: _Attacker) -> None:
    with sock.makefile("rw") as file:
        for line in file:
            answer = attacker.plant() if line.strip() == "plant" else attacker.attack()
            file.write(json.dumps(answer) + "\n")
            file.flush()


def predictable_names(data_dir: Path, uids: tuple[int, ...]) -> Iterator[Path]:
    """Every name in /dev/shm and /tmp that follows from the data directory's path."""
    instance = instance_name(data_dir)
    for name in (instance, f"{instance}-processes", f"{instance}-partitions", f"{instance}-image"):
        yield SHARED / name
    for version in range(1, IMAGES):
        yield SHARED / f"{instance}-image-{version}"
    for generation in range(1, GENERATIONS):
        for role in ROLES:
            yield SHARED / f"{instance}-pool-{role}.g{generation}"
            for other in ROLES:
                for theirs in range(1, GENERATIONS):
                    yield SHARED / f"{instance}-ring-{role}.g{generation}-{other}.g{theirs}"
    for uid in uids:
        yield TEMPORARY / f"{instance}.{uid}"
    yield TEMPORARY / instance


def _remove_planted(data_dir: Path) -> None:
    for path in predictable_names(data_dir, (0, *range(4000, 5000))):
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


class _Attacker:
    """Runs as nobody."""

    def __init__(self, data_dir: Path, uids: tuple[int, ...], endpoints: tuple[Path, ...]) -> None:
        self._data_dir = data_dir
        self._uids = uids
        self._endpoints = endpoints
        self._library = ctypes.CDLL(None, use_errno=True)
        self._held: list[int] = []
        self._done: list[str] = []

    def plant(self) -> int:
        taken = 0
        for number, path in enumerate(predictable_names(self._data_dir, self._uids)):
            with suppress(OSError):
                if path.parent == TEMPORARY:
                    path.mkdir(mode=0o777)
                elif number % 3:
                    self._held.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
                    self._lock(self._held[-1])
                    self._held.pop()
                else:
                    path.symlink_to("/etc/passwd")
                taken += 1
        return taken

    def attack(self) -> list[str]:
        self._done = []
        for root in (self._data_dir, *self._private_directories()):
            self._try(f"list {root}", partial(os.listdir, root))
            self._try(f"create in {root}", partial(self._create, root / "planted"))
            for name in self._guesses():
                self._files(root / name)
                self._try(f"create {root / name}", partial(self._create, root / name))
            for folder, _, files in os.walk(root):
                for name in files:
                    self._files(Path(folder, name))
            self._try(f"rename {root}", partial(os.rename, root, f"{root}.gone"))
        self._sockets()
        self._processes()
        return self._done

    def _private_directories(self) -> list[Path]:
        """What it can see in /dev/shm and /tmp of the users under attack."""
        found = []
        for parent in (SHARED, TEMPORARY):
            for path in parent.iterdir():
                with suppress(OSError):
                    if path.name.startswith("appliance-") and path.lstat().st_uid in self._uids:
                        found.append(path)
        return found

    def _guesses(self) -> Iterator[str]:
        yield from ("processes", "partitions", "image", "controller.zmq", "acceptor.zmq", "acceptor.fd")
        yield from (f"image-{version}" for version in range(1, 50))
        for generation in range(1, GENERATIONS):
            yield from (f"pool-{role}.g{generation}" for role in ROLES)
        yield from (
            ".lock",
            "run.json",
            "runtime-directory",
            "metadata.db",
            "metadata.db-wal",
            "metadata.db-shm",
        )
        yield from ("secure/ca.key", "secure/server.key", "secure/admin.key", "secure/client.properties")
        yield from ("shared-memory/hello", "metadata.copy")
        yield from ("metadata.sessions", "slot-0/.lock", "slot-0/.lock-checkpoints", "slot-0/meta.properties")

    def _files(self, path: Path) -> None:
        for what, flags in (("read", os.O_RDONLY), ("write", os.O_RDWR)):

            def attempt(flags: int = flags) -> None:
                descriptor = os.open(path, flags | os.O_NONBLOCK)
                self._held.append(descriptor)
                self._lock(descriptor)

            self._try(f"{what} {path}", attempt)
        place = TEMPORARY / f"link-{os.getpid()}"
        self._try(f"link {path}", partial(os.link, path, place))
        with suppress(OSError):
            place.unlink()
        self._try(f"remove {path}", partial(os.unlink, path))
        self._try(f"truncate {path}", partial(os.truncate, path, 0))
        self._try(f"change the mode of {path}", partial(os.chmod, path, 0o666))

    @staticmethod
    def _lock(descriptor: int) -> None:
        """Every kind of lock that the open mode allows; held as long as the descriptor."""
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            with suppress(OSError):
                fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)

    def _create(self, path: Path) -> None:
        self._held.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))

    def _sockets(self) -> None:
        """Unix sockets of the users under attack, by path or abstract name, as /proc/net/unix lists them."""
        guessed = [self._data_dir / "shared-memory" / "hello", *self._endpoints]
        for root in self._private_directories():
            guessed += [root / name for name in ("controller.zmq", "acceptor.zmq", "acceptor.fd")]
        for path in guessed:
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
                with socket.socket(socket.AF_UNIX, kind) as sock:
                    self._try(f"connect to {path}", partial(sock.connect, str(path)))
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
            fields = line.split(maxsplit=7)
            name = fields[7] if len(fields) == 8 else ""
            if "appliance" not in name or name.startswith("@appliance-test-"):  # the tests' own (wire.py)
                continue
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_UNIX, kind) as sock:
                    address = f"\0{name[1:]}" if name.startswith("@") else name
                    self._try(f"connect to {name}", partial(sock.connect, address))

    def _processes(self) -> None:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.uids().real not in self._uids or not " ".join(process.cmdline()).startswith(
                    "appliance: "
                ):
                    continue
                for number in (
                    signal.SIGCONT,
                    signal.SIGUSR1,
                    signal.SIGTERM,
                    signal.SIGHUP,
                    signal.SIGSTOP,
                    signal.SIGKILL,
                ):
                    self._try(f"{number.name} to {process.pid}", partial(os.kill, process.pid, number))
                self._intrude(process.pid)
                for name in ("fd", "map_files", "root", "cwd"):
                    path = f"/proc/{process.pid}/{name}"
                    self._try(f"list {path}", partial(os.listdir, path))
                for name in ("mem", "environ", "maps", "stack", "syscall"):
                    path = f"/proc/{process.pid}/{name}"
                    for flags in (os.O_RDONLY, os.O_RDWR):
                        self._try(f"open {path}", partial(self._read_some, path, flags))

    def _intrude(self, pid: int) -> None:
        """Trace a process, read its memory, take its descriptors, change its limits."""
        for request in (_PTRACE_SEIZE, _PTRACE_ATTACH):
            self._try(f"trace {pid}", partial(self._call, self._library.ptrace, request, pid, None, None))
        page = ctypes.create_string_buffer(_PAGE_BYTES)
        here = (ctypes.c_void_p * 2)(ctypes.addressof(page), _PAGE_BYTES)
        # Where an executable without a random address has its first page; the permission is checked before the address.
        there = (ctypes.c_void_p * 2)(0x400000, _PAGE_BYTES)
        for name in ("process_vm_readv", "process_vm_writev"):
            call = getattr(self._library, name)
            self._try(f"{name} of {pid}", partial(self._call, call, pid, here, 1, there, 1, 0))
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            for number in range(_DESCRIPTORS_TRIED):
                self._try(
                    f"take descriptor {number} of {pid}",
                    partial(self._call, self._library.syscall, _PIDFD_GETFD, pidfd, number, 0),
                )
            self._try(f"signal {pid}", partial(signal.pidfd_send_signal, pidfd, signal.SIGCONT))
            os.close(pidfd)
        self._try(f"limit {pid}", partial(resource.prlimit, pid, resource.RLIMIT_NOFILE, (1, 1)))
        self._try(f"nice {pid}", partial(os.setpriority, os.PRIO_PROCESS, pid, 19))
        self._try(f"pin {pid}", partial(os.sched_setaffinity, pid, {0}))

    @staticmethod
    def _call(function: Callable[..., int], *arguments: object) -> None:
        if function(*arguments) < 0:
            raise OSError(ctypes.get_errno(), "refused")

    @staticmethod
    def _read_some(path: str, flags: int) -> None:
        """Some files of /proc open for everybody, and refuse or say nothing when they are read."""
        descriptor = os.open(path, flags)
        try:
            if not os.read(descriptor, 16):
                raise PermissionError(path)
        finally:
            os.close(descriptor)

    def _try(self, what: str, action: Callable[[], object]) -> None:
        with suppress(OSError):
            action()
            self._done.append(what)


def wait_for_all(condition: Callable[[], bool], within_s: float) -> bool:
    """Return whether `condition` came to hold in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def modes(directory: Path) -> dict[str, int]:
    """Relative path → permission bits of everything in `directory`, itself (".") included."""
    found = {".": stat.S_IMODE(directory.stat().st_mode)}
    for folder, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(folder, name)
            with suppress(FileNotFoundError):
                found[str(path.relative_to(directory))] = stat.S_IMODE(path.lstat().st_mode)
    return found
