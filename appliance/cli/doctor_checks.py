"""What `appliance doctor` says about a host and a configuration: pure functions from facts to findings.

| level | meaning | exit code |
|---|---|---|
| problem | records can be lost, anybody can get at them, or the appliance will stop | 1 |
| advice | it works, but slower, or not under every load | 0; 1 with --strict |
| ok | nothing to change | 0 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GIB: Final = 1 << 30
MIB: Final = 1 << 20
KERNEL_LEAST: Final = (5, 8)
KERNEL_WANTED: Final = (5, 13)
OPEN_FILES_WANTED: Final = 262_144
OPEN_FILES_LEAST: Final = 4_096
MAP_COUNT_WANTED: Final = 1_048_576
SWAPPINESS_MAX: Final = 10
FREE_SHARE_LEAST: Final = 0.05
FREE_SHARE_WANTED: Final = 0.15
DIRTY_BYTES_MAX: Final = 8 * GIB
MEMORY_FOR_PAGES: Final = 2 * GIB
FAST_CLOCKS: Final = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"})
LOCAL_FILE_SYSTEMS: Final = frozenset({"ext2/ext3", "ext4", "xfs", "btrfs"})
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs"}
)
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    ADVICE = "advice"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `change` says what to do, and `why` what happens otherwise; both empty if it is ok."""

    check: str
    level: Level
    found: str
    change: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of logs, or where it will be made. `disk` names the device below it; `is_rotating` None: unknown."""

    path: str
    file_system: str
    size_bytes: int
    free_bytes: int
    free_inodes_share: float
    disk: str
    is_rotating: bool | None = None


@dataclass(frozen=True, slots=True)
class ListenerFact:
    """A listener. `needs_login`: it authenticates clients. `is_loopback`: only this host reaches it."""

    name: str
    address: str
    needs_login: bool
    is_loopback: bool
    is_encrypted: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the checks look at. Sizes in bytes; None where the host does not say it."""

    machine: str
    kernel: tuple[int, int]
    open_files: int
    locked_bytes: int | None
    shared_memory_bytes: int
    pool_bytes: int
    map_count_max: int | None
    backlog_max: int | None
    backlog: int
    swappiness: int | None
    autogroup: int | None
    swap_bytes: int
    dirty_bytes: int | None
    dirty_ratio: int | None
    memory_bytes: int
    memory_limit_bytes: int | None
    clock_source: str | None
    is_clock_synchronized: bool | None
    places: Sequence[Place]
    slots: int
    listeners: Sequence[ListenerFact]
    has_authorizer: bool
    durability: str
    replication_factor: int
    min_insync: int
    unclean_election: bool
    data_dir_mode: int | None
    data_dir_owner: int | None
    user: int


def examine(facts: Facts) -> list[Finding]:
    """Every check's finding, in the order of CHECKS."""
    return [finding for check in CHECKS for finding in check(facts)]


def kernel(facts: Facts) -> Iterator[Finding]:
    found = f"Linux {facts.kernel[0]}.{facts.kernel[1]}, {facts.machine}"
    if facts.machine != "x86_64":
        yield Finding(
            "kernel", Level.PROBLEM, found, "use an x86-64 host", "the appliance starts on x86-64 only"
        )
    elif facts.kernel < KERNEL_LEAST:
        yield Finding(
            "kernel",
            Level.PROBLEM,
            found,
            "use Linux 5.8 or newer",
            "older kernels do not report failed writes to syncfs",
        )
    elif facts.kernel < KERNEL_WANTED:
        yield Finding(
            "kernel",
            Level.ADVICE,
            found,
            "use Linux 5.13 or newer",
            "older kernels cannot confine processes (Landlock)",
        )
    else:
        yield Finding("kernel", Level.OK, found)


def open_files(facts: Facts) -> Iterator[Finding]:
    found = f"{facts.open_files} open files per process"
    change = "LimitNOFILE=262144 in the unit, or `ulimit -n 262144`"
    why = "connections and segments are refused above the limit"
    if facts.open_files < OPEN_FILES_LEAST:
        yield Finding("open files", Level.PROBLEM, found, change, why)
    elif facts.open_files < OPEN_FILES_WANTED:
        yield Finding("open files", Level.ADVICE, found, change, why)
    else:
        yield Finding("open files", Level.OK, found)


def locked_memory(facts: Facts) -> Iterator[Finding]:
    limit = "no limit" if facts.locked_bytes is None else shown(facts.locked_bytes)
    yield Finding("locked memory", Level.OK, f"{limit}; the appliance locks no memory")


def shared_memory(facts: Facts) -> Iterator[Finding]:
    found = f"/dev/shm has {shown(facts.shared_memory_bytes)}, the pools take up to {shown(facts.pool_bytes)}"
    if facts.shared_memory_bytes < facts.pool_bytes:
        yield Finding(
            "shared memory",
            Level.PROBLEM,
            found,
            "enlarge /dev/shm (`mount -o remount,size=…`, a container: --shm-size), or lower network.pool.bytes",
            "the appliance does not start",
        )
    elif facts.shared_memory_bytes < 2 * facts.pool_bytes:
        yield Finding(
            "shared memory",
            Level.ADVICE,
            found,
            "enlarge /dev/shm to twice the pools",
            "rings and the pools of restarted processes need room, too",
        )
    else:
        yield Finding("shared memory", Level.OK, found)


def mappings(facts: Facts) -> Iterator[Finding]:
    if facts.map_count_max is None:
        return
    found = f"vm.max_map_count = {facts.map_count_max}"
    if facts.map_count_max < MAP_COUNT_WANTED:
        yield Finding(
            "mappings",
            Level.ADVICE,
            found,
            f"vm.max_map_count = {MAP_COUNT_WANTED} in /etc/sysctl.d",
            "thousands of partitions map more files than this",
        )
    else:
        yield Finding("mappings", Level.OK, found)


def backlog(facts: Facts) -> Iterator[Finding]:
    if facts.backlog_max is None:
        return
    found = f"net.core.somaxconn = {facts.backlog_max}, socket.listen.backlog.size = {facts.backlog}"
    if facts.backlog_max < facts.backlog:
        yield Finding(
            "backlog",
            Level.ADVICE,
            found,
            f"net.core.somaxconn = {facts.backlog} in /etc/sysctl.d",
            "many clients that connect at once are refused",
        )
    else:
        yield Finding("backlog", Level.OK, found)


def swapping(facts: Facts) -> Iterator[Finding]:
    if facts.swappiness is None:
        return
    found = f"vm.swappiness = {facts.swappiness}, {shown(facts.swap_bytes)} of swap"
    if facts.swap_bytes and facts.swappiness > SWAPPINESS_MAX:
        yield Finding(
            "swapping",
            Level.ADVICE,
            found,
            "vm.swappiness = 1 in /etc/sysctl.d (it changes the whole host), or swapoff",
            "a process that waits for swap answers late",
        )
    else:
        yield Finding("swapping", Level.OK, found)


def scheduling(facts: Facts) -> Iterator[Finding]:
    if facts.autogroup is None:
        return
    found = f"kernel.sched_autogroup_enabled = {facts.autogroup}"
    if facts.autogroup:
        yield Finding(
            "scheduling",
            Level.ADVICE,
            found,
            "kernel.sched_autogroup_enabled = 0 in /etc/sysctl.d (it changes the whole host)",
            "busy programs of another session can keep the appliance from the processors for seconds, whatever their"
            " nice value",
        )
    else:
        yield Finding("scheduling", Level.OK, found)


def writing_back(facts: Facts) -> Iterator[Finding]:
    if facts.dirty_bytes is None and facts.dirty_ratio is None:
        return
    limit = facts.dirty_bytes or facts.memory_bytes * (facts.dirty_ratio or 0) // 100
    found = f"the kernel keeps up to {shown(limit)} of unwritten pages"
    if limit > DIRTY_BYTES_MAX:
        yield Finding(
            "writing back",
            Level.ADVICE,
            found,
            "vm.dirty_bytes = 2147483648 in /etc/sysctl.d (it changes the whole host)",
            "a flush of so much takes many seconds, and a power cut loses it with durability = page-cache",
        )
    else:
        yield Finding("writing back", Level.OK, found)


def memory(facts: Facts) -> Iterator[Finding]:
    limit = facts.memory_limit_bytes
    there = facts.memory_bytes if limit is None else min(facts.memory_bytes, limit)
    found = shown(there) + (
        "" if limit is None or limit >= facts.memory_bytes else " (limit of the control group)"
    )
    if there < facts.pool_bytes:
        yield Finding(
            "memory",
            Level.PROBLEM,
            found,
            "lower network.pool.bytes, or add memory",
            "the kernel kills the appliance",
        )
    elif there < facts.pool_bytes + MEMORY_FOR_PAGES:
        yield Finding(
            "memory",
            Level.ADVICE,
            found,
            f"leave {shown(MEMORY_FOR_PAGES)} beyond the pools ({shown(facts.pool_bytes)})",
            "consumers then read from the disk, because the page cache has no room",
        )
    else:
        yield Finding("memory", Level.OK, found)


def clock(facts: Facts) -> Iterator[Finding]:
    if facts.is_clock_synchronized is None:
        yield Finding("clock", Level.OK, "the kernel does not say whether the clock is synchronized")
    elif facts.is_clock_synchronized:
        yield Finding("clock", Level.OK, "synchronized")
    else:
        yield Finding(
            "clock",
            Level.ADVICE,
            "not synchronized",
            "run chrony or systemd-timesyncd",
            "timestamps, retention by time and tokens go by this clock",
        )
    if facts.clock_source is None:
        return
    found = f"clock source {facts.clock_source}"
    if facts.clock_source in FAST_CLOCKS:
        yield Finding("clock source", Level.OK, found)
    else:
        yield Finding(
            "clock source",
            Level.ADVICE,
            found,
            "use tsc or kvm-clock if the host has it",
            "each reading of this clock is a system call",
        )


def file_systems(facts: Facts) -> Iterator[Finding]:
    for place in facts.places:
        found = f"{place.path}: {place.file_system}"
        if place.file_system in MEMORY_FILE_SYSTEMS:
            yield Finding(
                "file system", Level.PROBLEM, found, "use a disk", "all records are lost when the host stops"
            )
        elif place.file_system in NETWORK_FILE_SYSTEMS:
            yield Finding(
                "file system",
                Level.PROBLEM,
                found,
                "use a local file system",
                "locks, mappings and flushes over a network do not keep what the appliance promises",
            )
        elif place.file_system not in LOCAL_FILE_SYSTEMS:
            yield Finding(
                "file system",
                Level.ADVICE,
                found,
                "use ext4 or XFS",
                "the appliance is tested on ext4, XFS and Btrfs; others may not report failed writes",
            )
        else:
            yield Finding("file system", Level.OK, found)


def room(facts: Facts) -> Iterator[Finding]:
    for place in facts.places:
        share = place.free_bytes / place.size_bytes if place.size_bytes else 1.0
        share = min(share, place.free_inodes_share)
        found = f"{place.path}: {shown(place.free_bytes)} free of {shown(place.size_bytes)}"
        if place.free_inodes_share < FREE_SHARE_WANTED:
            found += f", {place.free_inodes_share:.0%} of the inodes free"
        change, why = "free some space, or lower retention.bytes", "a full disk refuses records"
        if share < FREE_SHARE_LEAST:
            yield Finding("disk space", Level.PROBLEM, found, change, why)
        elif share < FREE_SHARE_WANTED:
            yield Finding("disk space", Level.ADVICE, found, change, why)
        else:
            yield Finding("disk space", Level.OK, found)


def disks(facts: Facts) -> Iterator[Finding]:
    names = sorted({place.disk for place in facts.places})
    found = f"{facts.slots} slots on {', '.join(names) or 'no disk'}"
    if facts.slots > 1 and len(names) == 1:
        yield Finding(
            "disks",
            Level.ADVICE,
            found,
            "put each slot on its own disk (log.dirs with {slot})",
            "one broken disk takes all replicas",
        )
    else:
        yield Finding("disks", Level.OK, found)
    for name in sorted({place.disk for place in facts.places if place.is_rotating}):
        yield Finding(
            "disks",
            Level.ADVICE,
            f"{name} rotates",
            "use an SSD",
            "flushes and lagging consumers wait for each seek",
        )


def durability(facts: Facts) -> Iterator[Finding]:
    found = f"durability = {facts.durability}"
    if facts.durability == "page-cache":
        yield Finding(
            "durability",
            Level.ADVICE,
            found,
            'durability = "fsync", if a power cut must lose no acknowledged record',
            "with page-cache a power cut loses the records of the last seconds",
        )
    else:
        yield Finding("durability", Level.OK, found)


def replication(facts: Facts) -> Iterator[Finding]:
    found = (
        f"default.replication.factor = {facts.replication_factor}, min.insync.replicas = {facts.min_insync}"
    )
    if facts.replication_factor > 2 and facts.min_insync < 2:
        yield Finding(
            "replication",
            Level.ADVICE,
            found,
            "min.insync.replicas = 2",
            "with acks=all a record can be acknowledged that only one replica has",
        )
    else:
        yield Finding("replication", Level.OK, found)
    if facts.unclean_election:
        yield Finding(
            "replication",
            Level.PROBLEM,
            "unclean.leader.election.enable = true",
            "set it to false, or for single topics only",
            "a replica that lacks acknowledged records may become leader",
        )


def listeners(facts: Facts) -> Iterator[Finding]:
    for each in facts.listeners:
        found = f"{each.name} on {each.address}"
        if each.is_loopback or (each.needs_login and each.is_encrypted):
            yield Finding("listener", Level.OK, found)
        elif not each.needs_login:
            yield Finding(
                "listener",
                Level.PROBLEM,
                f"{found}: other hosts connect without a login",
                "use SASL_SSL, or SSL with ssl.client.auth = required (docs/access.md)",
                "everybody who can connect can read, write and delete everything, unless ACLs say otherwise",
            )
        else:
            yield Finding(
                "listener",
                Level.ADVICE,
                f"{found}: not encrypted",
                "use SASL_SSL (docs/access.md)",
                "everybody on the way can read the records",
            )
    if not facts.has_authorizer and any(not each.is_loopback for each in facts.listeners):
        yield Finding(
            "access",
            Level.ADVICE,
            "no authorizer.class.name: every client may do everything",
            "set authorizer.class.name, and ACLs (docs/acls.md)",
            "one client's mistake can delete the topics of all others",
        )


def data_directory(facts: Facts) -> Iterator[Finding]:
    if facts.data_dir_mode is None:
        yield Finding("data directory", Level.OK, "not there yet; the first start makes it with mode 0700")
        return
    found = f"mode {facts.data_dir_mode & 0o777:04o}, user id {facts.data_dir_owner}"
    if facts.data_dir_mode & 0o022:
        yield Finding(
            "data directory",
            Level.PROBLEM,
            found,
            "chmod go-w",
            "another user can replace files in it; the appliance refuses to start",
        )
    elif facts.data_dir_mode & 0o005:
        yield Finding(
            "data directory",
            Level.ADVICE,
            found,
            "chmod o-rx (readers: data.directory.group)",
            "every user of this host can list the topics",
        )
    else:
        yield Finding("data directory", Level.OK, found)
    if facts.data_dir_owner == 0:
        yield Finding(
            "user",
            Level.ADVICE,
            "the appliance runs as root",
            "give it a user of its own (deploy/systemd)",
            "a defect in it then affects the whole host",
        )
    elif facts.user not in (0, facts.data_dir_owner):
        yield Finding(
            "user",
            Level.ADVICE,
            f"user id {facts.user} asks, and the data directory belongs to {facts.data_dir_owner}",
            "run doctor as the appliance's user",
            "limits of another user are shown here",
        )


CHECKS: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    kernel,
    open_files,
    locked_memory,
    shared_memory,
    mappings,
    backlog,
    swapping,
    scheduling,
    writing_back,
    memory,
    clock,
    file_systems,
    room,
    disks,
    durability,
    replication,
    listeners,
    data_directory,
)


def shown(amount: float) -> str:
    """Bytes as people write them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
