"""`appliance status`: address, disks and topics in a few lines, then each process, read from its shared memory.

No process need answer, so the command ends while all of them are stuck. What the table in shared
memory cannot say is read from /proc: whether a process lives, and by its title which one it is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.build import NAMES
from appliance.channels.counter_names import named_counters
from appliance.cli.options import security_options
from appliance.cli.output import json_option, print_json, print_table, shown_bytes
from appliance.cli.status_summary import print_summary, shown_duration, summary
from appliance.cli.watch import watch_option, watched
from appliance.config import IoSettings, NetworkSettings, Settings
from appliance.errors import ConfigurationError, HostFault, OperatorFault

if TYPE_CHECKING:
    from appliance.cluster import ClusterImage
    from appliance.ipc.process_table import ProcessSnapshot

TITLE: Final = "appliance: "
WORKER: Final = "ioproc "
RUN_FILE: Final = "run.json"
SLOTS_MAX: Final = 32
STUCK_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class LivingProcess:
    """What /proc tells of a process: its title behind `appliance: `, its parent, and whether it was stopped."""

    title: str
    parent: int
    stopped: bool


@click.command(short_help="Show a running appliance: address, disks, topics, processes.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="The data directory.",
)
@security_options
@watch_option
@json_option
def status(*, data_dir: Path, as_json: bool, watch_s: float | None) -> int:
    """Show the appliance that serves DATA_DIR: its address, disks and topics, and each of its processes.

    The command asks the broker about the topics, in plain text or as the flags say. If there is no listener in plain
    text and no flag says how to connect, the command reads the topics from shared memory.

    QUEUE is the number of requests that wait for a process. IDLE is the share of the process's lifetime in which it
    had no work. The exit code is 1 if no appliance runs.
    """
    try:
        if not data_dir.is_dir():
            raise OperatorFault(f"{data_dir}: no such directory")
        directory = data_dir.resolve()
    except PermissionError as error:
        raise OperatorFault(
            f"{data_dir}: Permission denied: this user cannot read the directories above it"
        ) from error
    code = 0

    def show() -> None:
        nonlocal code
        code = _show(directory, as_json=as_json)

    watched(show, watch_s)
    return code


def _show(directory: Path, *, as_json: bool) -> int:
    """Prints one picture. Returns the exit code."""
    from appliance.channels.wiring import instance_name

    processes = processes_of(directory)
    runs = any(process["pid"] is not None for process in processes or [])
    facts = run_facts(directory) if processes else {}
    told = summary(facts, processes or [], running=runs, image=lambda: _image(directory, facts))
    if as_json:
        print_json(
            {
                "instance": instance_name(directory),
                "data_dir": str(directory),
                "running": runs,
                "build": facts.get("build") if runs else None,
                **told,
                "processes": processes or [],
            }
        )
    elif processes and runs:
        print_summary(told, str(directory))
        if (kind := facts.get("build")) in NAMES:
            click.echo(NAMES[kind])
        _print(processes)
    if not runs:
        # Programs read it from the JSON; people from here.
        reason = (
            "no appliance runs on" if processes is None else "the appliance was killed; no appliance runs on"
        )
        click.echo(f"appliance: {reason} {directory}", err=True)
        return 1
    return 0


def processes_of(directory: Path) -> list[dict[str, Any]] | None:
    """The processes of the appliance that serves `directory`, a resolved path, as `told_processes` tells them.

    None where it has no process table: it was stopped, or never started.
    """
    facts = run_facts(directory)
    rows = _rows(directory, facts)
    return None if rows is None else told_processes(rows, facts, now_ns=time.monotonic_ns())


def _rows(directory: Path, facts: Mapping[str, Any]) -> list[ProcessSnapshot] | None:
    """Return a copy of the process table; None where no instance has one.

    Raises:
        OperatorFault: the data directory belongs to another user, and this one may not look into it.
    """
    from appliance.channels.wiring import PROCESSES
    from appliance.ipc.process_table import ProcessTable
    from appliance.ipc.shared_memory import Region

    try:
        memory, owner = _memory(directory, facts)
        if memory is None:
            return None
        region = Region.open(f"{memory}/{PROCESSES}", owner=owner, writable=False)
    except PermissionError:
        raise _belongs_to_another(directory, directory.stat().st_uid) from None
    except HostFault:
        if _memory(directory, facts)[0] is None:
            return None  # it stopped just now
        raise
    try:
        return ProcessTable(region.view).snapshot()
    finally:
        region.close()


def _image(directory: Path, facts: Mapping[str, Any]) -> ClusterImage | None:
    """Return the metadata image; None where no instance has published one."""
    from appliance.channels.metadata_image import ImageReader
    from appliance.channels.wiring import IMAGE
    from appliance.ipc.shared_memory import Region

    try:
        memory, owner = _memory(directory, facts)
        if memory is None:
            return None
        region = Region.open(f"{memory}/{IMAGE}", owner=owner, writable=False)
    except (HostFault, OSError):
        return None  # it stopped just now
    try:
        return ImageReader(memory, region.view, owner=owner).current()
    finally:
        region.close()


def _memory(directory: Path, facts: Mapping[str, Any]) -> tuple[Path | None, int]:
    """Return the private directory of the instance, None where there is none, and the user id that it belongs to.

    Raises:
        PermissionError: the data directory belongs to another user. Root may look at what another user runs.
    """
    from appliance.channels import runtime_directory

    owner = directory.stat().st_uid
    recorded = facts.get("pid")
    pid = recorded if isinstance(recorded, int) else None
    return runtime_directory.find(directory, owner=owner, pid=pid), owner


def _belongs_to_another(directory: Path, owner: int) -> OperatorFault:
    from appliance.log.lock_file import user_named

    name, user = user_named(owner), user_named(os.geteuid())
    return OperatorFault(
        f"{directory} belongs to user {name}, and {user} cannot read it: run this command as {name} or root"
    )


def run_facts(directory: Path) -> dict[str, Any]:
    """What the supervisor wrote down about itself; empty where that is gone or unreadable."""
    with suppress(OSError, ValueError):
        facts = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
        if isinstance(facts, dict):
            return facts
    return {}


def told_processes(
    rows: list[ProcessSnapshot], facts: Mapping[str, Any], *, now_ns: int
) -> list[dict[str, Any]]:
    """One object a process that was ever started, in start order; the keys are stable.

    A dead process keeps its row until it is started again: its `pid` is null and its state `dead`.
    """
    living = {row.index: found for row in rows if (found := living_process(row.pid)) is not None}
    slots = facts.get("slots")
    names = role_names(len(rows), {index: each.title for index, each in living.items()}, slots=slots)
    told = [_told(row, names[row.index], living.get(row.index), now_ns=now_ns) for row in rows if row.pid]
    for process in told:
        if process["role"].startswith(WORKER):
            process.update(_storage(process["role"], process["counters"], facts))
    if not any(process["role"] == "supervisor" for process in told):
        told = _supervisor(facts, living) + told
    return told


def living_process(pid: int) -> LivingProcess | None:
    """The process of this id, if it lives and is one of the appliance's; ids are used again by others."""
    if pid <= 0:
        return None
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        # `pid (name) state parent …`: the name may hold anything, also a parenthesis.
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, parent = after_name[0], int(after_name[1])
    if not title.startswith(TITLE) or state in "ZX":
        return None
    return LivingProcess(title.removeprefix(TITLE).strip(), parent, state in "Tt")


def role_names(rows: int, seen: Mapping[int, str], *, slots: int | None = None) -> list[str]:
    """The role of each row of a table of `rows`, given the titles `seen` at some of them.

    The table holds no names. The plan of roles follows from three numbers (slots, workers, network processes),
    and only the right ones give a plan of this length with these titles in these places.
    """
    from appliance.channels.roles import planned_roles

    for slot_count in [slots] if slots else range(1, SLOTS_MAX + 1):
        for workers in range(1, rows):
            with suppress(ConfigurationError):
                io = IoSettings(workers=workers)
                smallest = len(
                    planned_roles(Settings(slots=slot_count, io=io, network=NetworkSettings(processes=1)))
                )
                network = NetworkSettings(processes=1 + rows - smallest)
                plan = [
                    str(role) for role in planned_roles(Settings(slots=slot_count, io=io, network=network))
                ]
                if all(plan[index] == title for index, title in seen.items()):
                    return plan
    return [seen.get(index, f"process {index}") for index in range(rows)]


def _told(row: ProcessSnapshot, role: str, living: LivingProcess | None, *, now_ns: int) -> dict[str, Any]:
    state = "dead" if living is None else "stopped" if living.stopped else row.state.name.lower()
    unaccounted_ns = now_ns - row.started_ns - row.busy_ns - row.idle_ns
    busy_for_ms = 0 if row.sleeping or living is None else max(0, unaccounted_ns // 1_000_000)
    return {
        "role": role,
        "pid": None if living is None else row.pid,
        "generation": row.generation,
        "restarts": max(0, row.generation - 1),
        "state": state,
        "started_ms": row.started_ms,
        "busy_for_ms": busy_for_ms,
        "queue_depth": row.queue_depth,
        "queue_depth_max": row.queue_depth_max,
        "idle_share": round(row.idle_share(now_ns), 4),
        "idle_ms": round(row.idle_share(now_ns) * max(0, now_ns - row.started_ns) / 1e6),
        "loops": row.loops,
        "requests": row.requests,
        "bytes_in": row.bytes_in,
        "bytes_out": row.bytes_out,
        "connections": row.connections,
        "errors": row.errors,
        "counters": named_counters(role, row.counters),
    }


def _storage(role: str, counters: Mapping[str, int], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker says of its slot's log directories; told by their places where their paths are not known."""
    from appliance.channels.worker_counters import directories_of

    slot = int(role.removeprefix(WORKER).partition(".")[0])
    try:
        paths = facts["log_dirs"][slot]
    except (KeyError, IndexError, TypeError):
        paths = []
    failed = directories_of(counters["failed_log_dirs_bits"])
    errno = counters["failed_log_dir_errno"]
    return {
        "failed_log_dirs": [paths[index] if index < len(paths) else str(index) for index in failed],
        "failed_log_dir_reason": os.strerror(errno) if failed and errno else None,
        "offline_partitions": counters["offline_partitions"],
        "moving_partitions": counters["moving_partitions"],
        "lost_partitions": counters["lost_partitions"],
        "repaired_batches": counters["repaired_batches"],
    }


def _supervisor(facts: Mapping[str, Any], living: Mapping[int, LivingProcess]) -> list[dict[str, Any]]:
    """The supervisor keeps out of shared memory: it is known as the parent of the others."""
    parents = {process.parent for process in living.values()}
    recorded = facts.get("pid")
    for pid in parents | ({recorded} if isinstance(recorded, int) else set()):
        found = living_process(pid)
        if found is not None and found.title == "supervisor":
            return [
                {
                    "role": "supervisor",
                    "pid": pid,
                    "generation": 1,
                    "restarts": 0,
                    "state": "stopped" if found.stopped else "running",
                    "started_ms": facts.get("started_ms"),
                }
            ]
    return []


def _print(processes: list[dict[str, Any]]) -> None:
    now_ms = time.time_ns() // 1_000_000
    headings = ("PROCESS", "PID", "STATE", "RESTARTS", "UP", "QUEUE", "MAX", "IDLE")
    load = ("REQUESTS", "IN", "OUT", "CONNECTIONS", "ERRORS")
    print_table(
        headings + load,
        [
            (
                each["role"],
                each["pid"],
                _shown_state(each),
                each["restarts"],
                None if each["started_ms"] is None else shown_duration(now_ms - each["started_ms"]),
                each.get("queue_depth"),
                each.get("queue_depth_max"),
                f"{each['idle_share']:.1%}" if "idle_share" in each else None,
                each.get("requests"),
                shown_bytes(each["bytes_in"]) if "bytes_in" in each else None,
                shown_bytes(each["bytes_out"]) if "bytes_out" in each else None,
                each.get("connections"),
                each.get("errors"),
            )
            for each in processes
        ],
        right=("PID", "RESTARTS", "UP", "QUEUE", "MAX", "IDLE", *load),
    )
    from appliance.channels.counter_names import BOUNDS

    for each in processes:
        for name, count in each.get("counters", {}).items():
            if count and name in BOUNDS:
                click.echo(f"{each['role']}: {count} {BOUNDS[name]}")
        for path in each.get("failed_log_dirs", ()):
            reason = f": {each['failed_log_dir_reason']}" if each["failed_log_dir_reason"] else ""
            click.echo(f"{each['role']}: log directory {path} has failed{reason}")
        if each.get("offline_partitions"):
            click.echo(f"{each['role']}: {each['offline_partitions']} partitions are offline")
        if each.get("lost_partitions"):
            click.echo(
                f"{each['role']}: {each['lost_partitions']} partitions have lost records, because every in-sync "
                "replica was damaged; the log names them"
            )
        if each.get("repaired_batches"):
            click.echo(
                f"{each['role']}: {each['repaired_batches']} damaged batches were repaired from another replica"
            )
        if each.get("moving_partitions"):
            click.echo(
                f"{each['role']}: {each['moving_partitions']} partitions move to another log directory"
            )


def _shown_state(process: Mapping[str, Any]) -> str:
    busy_ms = process.get("busy_for_ms", 0)
    return f"{process['state']}, busy {shown_duration(busy_ms)}" if busy_ms >= STUCK_MS else process["state"]
