"""`appliance doctor`: look at this host and the configuration, and say what to change and why."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from appliance.cli.doctor_checks import Facts, Level, ListenerFact, Place, examine
from appliance.cli.options import name_and_value
from appliance.cli.output import json_option, print_json
from appliance.config import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_LIMIT: Final = 1 << 62
_STA_UNSYNC: Final = 0x40
_TIMEX_BYTES: Final = 512
_STATUS_AT: Final = 40
_TIME_ERROR: Final = 5


@click.command(short_help="Look at this host and the configuration; say what to change and why.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="As of serve.",
)
@click.option("--data-dir", metavar="DIR", help="As of serve.")
@click.option("--set", "overrides", metavar="NAME=VALUE", multiple=True, help="As of serve; repeatable.")
@click.option("--strict", is_flag=True, help="Exit with 1 also if there is only advice.")
@json_option
def doctor(
    *, config_path: Path | None, data_dir: str | None, overrides: tuple[str, ...], strict: bool, as_json: bool
) -> int:
    """Look at kernel, limits, memory, disks, clock and configuration. Give the flags that `appliance serve` gets.

    Each line is ok, advice or a problem. A problem can lose records, let anybody in, or
    prevent a start. The exit code is 1 if there is a problem. If the appliance runs, the limits are those of its
    processes.
    """
    given = dict(name_and_value("--set", text) for text in overrides)
    if data_dir is not None:
        given["data.dir"] = data_dir
    settings = load_settings(config_path, given)
    findings = examine(gather(settings))
    if as_json:
        print_json([asdict(each) | {"level": str(each.level)} for each in findings])
    else:
        for each in findings:
            click.echo(f"{each.level:<8} {each.check}: {each.found}")
            if each.change:
                click.echo(f"         change: {each.change}")
                click.echo(f"         because {each.why}")
        counts = {level: sum(each.level is level for each in findings) for level in Level}
        click.echo(
            f"{counts[Level.PROBLEM]} problems, {counts[Level.ADVICE]} pieces of advice, {counts[Level.OK]} ok"
        )
    levels = {each.level for each in findings}
    return int(Level.PROBLEM in levels or (strict and Level.ADVICE in levels))


def gather(settings: Settings) -> Facts:
    """The facts of this host, and of the appliance on the data directory if it runs."""
    from appliance.channels.roles import RoleKind, running_roles
    from appliance.control.supervisor.listening import is_loopback
    from appliance.control.supervisor.memory_room import memory_bytes

    pid = _running(settings.data_dir)
    roles = [role.kind for role in running_roles(settings)]
    pools = roles.count(RoleKind.NETPROC) * settings.network.pool_bytes
    pools += roles.count(RoleKind.COORDINATOR) * settings.broker.coordinator_pool_bytes
    uname = os.uname()
    release = re.match(r"(\d+)\.(\d+)", uname.release)
    shared = os.statvfs(f"/proc/{pid}/root/dev/shm" if pid and os.geteuid() == 0 else "/dev/shm")
    memory = _meminfo()
    open_files, locked = _limits(pid)
    mode = owner = None
    with suppress(OSError):
        status = settings.data_dir.stat()
        mode, owner = status.st_mode, status.st_uid
    topics = settings.topic_defaults
    return Facts(
        machine=uname.machine,
        kernel=(int(release[1]), int(release[2])) if release else (0, 0),
        open_files=open_files,
        locked_bytes=locked,
        shared_memory_bytes=shared.f_blocks * shared.f_frsize,
        pool_bytes=pools,
        map_count_max=_number("/proc/sys/vm/max_map_count"),
        backlog_max=_number("/proc/sys/net/core/somaxconn"),
        backlog=settings.network.listen_backlog,
        swappiness=_number("/proc/sys/vm/swappiness"),
        autogroup=_number("/proc/sys/kernel/sched_autogroup_enabled"),
        swap_bytes=memory.get("SwapTotal", 0),
        dirty_bytes=_number("/proc/sys/vm/dirty_bytes") or None,
        dirty_ratio=_number("/proc/sys/vm/dirty_ratio"),
        memory_bytes=memory_bytes(),
        memory_limit_bytes=_memory_limit(pid),
        clock_source=_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        is_clock_synchronized=_is_clock_synchronized(),
        places=tuple(
            _place(directory)
            for slot in range(settings.slots)
            for directory in settings.log_directories(slot)
        ),
        slots=settings.slots,
        listeners=tuple(
            ListenerFact(
                each.name,
                f"{each.host}:{each.port}",
                each.is_sasl or (each.is_tls and settings.ssl.client_auth == "required"),
                is_loopback(each.host) or each.host == "localhost",
                each.is_tls,
            )
            for each in settings.listeners
        ),
        has_authorizer=settings.access.checks,
        durability=topics.get("durability", "page-cache"),
        replication_factor=settings.broker.default_replication_factor,
        min_insync=int(topics.get("min.insync.replicas", "1")),
        unclean_election=topics.get("unclean.leader.election.enable", "false") == "true",
        data_dir_mode=mode,
        data_dir_owner=owner,
        user=os.geteuid(),
    )


def _running(data_dir: Path) -> int:
    """The supervisor's process id; 0 if no appliance runs on the directory, or this user cannot see it."""
    from appliance.cli.status import living_process

    with suppress(OSError, ValueError, KeyError, TypeError):
        pid = int(json.loads((data_dir / "run.json").read_text())["pid"])
        return pid if living_process(pid) is not None else 0
    return 0


def _limits(pid: int) -> tuple[int, int | None]:
    """Open files and locked memory in bytes (None: no limit), of a process or of what this one may start."""
    found: dict[str, int] = {}
    if pid:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]:
                name, soft = line[:26].strip(), line[26:47].strip()
                found[name] = _NO_LIMIT if soft == "unlimited" else int(soft)
    files = found.get("Max open files", resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    locked = found.get("Max locked memory", resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])
    return (_NO_LIMIT if files < 0 else files), None if locked < 0 or locked == _NO_LIMIT else locked


def _memory_limit(pid: int) -> int | None:
    """The lowest limit of the process's control groups (version 2), in bytes; None: none, or unknown."""
    group = _text(f"/proc/{pid or 'self'}/cgroup") or ""
    path = next((line[3:] for line in group.splitlines() if line.startswith("0::")), "")
    limits = []
    at = Path("/sys/fs/cgroup") / path.strip("/")
    for place in (at, *at.parents):
        text = _text(place / "memory.max")
        if text is not None and text.isdigit():
            limits.append(int(text))
    return min(limits, default=None)


def _place(directory: Path) -> Place:
    there = directory.absolute()
    while not there.exists():
        there = there.parent
    room = os.statvfs(there)
    kind, source = _mount(there)
    device = there.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    rotating = _number(block / "queue/rotational")
    if rotating is None:
        rotating = _number(block / "../queue/rotational")
    if re.match(r"/dev/(vd|xvd|nbd)", source):
        rotating = None  # a virtual disk says that it rotates, whatever is below it
    return Place(
        str(directory),
        kind,
        room.f_blocks * room.f_frsize,
        room.f_bavail * room.f_frsize,
        room.f_favail / room.f_files if room.f_files else 1.0,
        source,
        None if rotating is None else bool(rotating),
    )


def _mount(path: Path) -> tuple[str, str]:
    """The type of the file system that a path is on, and the device or source of the mount."""
    best, found = -1, ("unknown", "unknown")
    real = os.path.realpath(path)
    for line in (_text("/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, found = len(point), (after.split()[0], after.split()[1])
    return found


def _is_clock_synchronized() -> bool | None:
    """What adjtimex(2) says of the clock; None where it may not be called."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS_AT : _STATUS_AT + 4], "little")
    return not status & _STA_UNSYNC and state != _TIME_ERROR


def _meminfo() -> Mapping[str, int]:
    """/proc/meminfo in bytes."""
    lines: Iterable[str] = (_text("/proc/meminfo") or "").splitlines()
    parts = (line.replace(":", "").split() for line in lines)
    return {each[0]: int(each[1]) * 1024 for each in parts if len(each) > 2}


def _number(path: Path | str) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _text(path: Path | str) -> str | None:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return None
