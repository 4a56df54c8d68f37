"""What `appliance top` shows: two samples of a running cluster, and what changed between them. Prints nothing.

Of an appliance on this host, a sample has its processes, read from shared memory and /proc as `status` reads them. Of
any broker, it has the ends of partitions and what groups have committed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.client import answer_of, asked
from appliance.cli.connecting import BrokerError
from appliance.cli.group_lag import committed_offsets, latest, offsets_at
from appliance.cli.topic_names import is_internal

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_S: Final = 5.0
PARTITIONS_MAX: Final = 2_000
"""Partitions whose ends are asked for in each turn. Topics behind them are shown without rates."""
GROUPS_MAX: Final = 50
"""Groups that are asked for in each turn, in the order of their names."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
# Of /proc/PID/stat behind the name: see proc_pid_stat(5).
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12
_RESIDENT_PAGES: Final = 21

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time and memory of a process."""

    cpu_s: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. `error` says why the broker was not asked; what it would have told is empty then."""

    at_s: float
    processes: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[int, Usage] = field(default_factory=dict)
    brokers: int | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    under_replicated: int = 0
    without_leader: int = 0
    ends: Mapping[Partition, int] = field(default_factory=dict)
    groups: Mapping[str, Mapping[Partition, int]] = field(default_factory=dict)
    more_groups: int = 0
    error: str | None = None


def usage_of(pid: int) -> Usage | None:
    """Return what a process uses; None if it is not there."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return Usage(ticks / _TICKS_PER_SECOND, int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES)


def sample(client: AdminClient | None, directory: Path | None) -> Sample:
    """Take a sample.

    Args:
        client: how to ask a broker; None if none answers.
        directory: the data directory of an appliance on this host, resolved; None for another broker.
    """
    from appliance.cli.status import processes_of

    processes = [] if directory is None else processes_of(directory) or []
    used = {
        process["pid"]: found
        for process in processes
        if process["pid"] is not None and (found := usage_of(process["pid"])) is not None
    }
    told: dict[str, Any] = {}
    error = None if client is not None else "no broker answers"
    if client is not None:
        try:
            told = _told(client)
        except BrokerError as fault:
            error = str(fault)
    return Sample(time.monotonic(), processes, used, error=error, **told)


def _told(client: AdminClient) -> dict[str, Any]:
    metadata = asked(lambda: client.list_topics(timeout=TIMEOUT_S))
    every = [each for topic in metadata.topics.values() for each in topic.partitions.values()]
    wanted: list[Partition] = []
    for name, topic in sorted(metadata.topics.items()):
        if not is_internal(name):
            wanted += [(name, number) for number, each in topic.partitions.items() if each.leader >= 0]
    ends = offsets_at(client, wanted[:PARTITIONS_MAX], latest()) if wanted else {}
    listed = answer_of(client.list_consumer_groups(request_timeout=TIMEOUT_S))
    names = sorted(each.group_id for each in listed.valid)
    groups = {}
    for name in names[:GROUPS_MAX]:
        try:
            groups[name] = committed_offsets(client, name)
        except BrokerError:
            continue  # deleted meanwhile, or its coordinator moves
    behind = {place for committed in groups.values() for place in committed if place not in ends}
    # A group may read internal topics, and topics behind PARTITIONS_MAX.
    there = [place for place in behind if place[0] in metadata.topics][:PARTITIONS_MAX]
    ends = {**ends, **(offsets_at(client, there, latest()) if there else {})}
    return {
        "brokers": len(metadata.brokers),
        "partitions": {name: len(topic.partitions) for name, topic in metadata.topics.items()},
        "under_replicated": sum(len(each.isrs) < len(each.replicas) for each in every),
        "without_leader": sum(each.leader < 0 for each in every),
        "ends": ends,
        "groups": groups,
        "more_groups": max(0, len(names) - GROUPS_MAX),
    }


def changes(before: Sample, now: Sample) -> dict[str, Any]:
    """Return what changed between two samples; the keys are stable. Rates are per second, None if not known."""
    passed_s = max(1e-3, now.at_s - before.at_s)
    processes = _processes(before, now, passed_s)
    return {
        "seconds": round(passed_s, 3),
        "error": now.error,
        "brokers": now.brokers,
        "topics": sum(not is_internal(name) for name in now.partitions),
        "partitions": sum(now.partitions.values()),
        "under_replicated_partitions": now.under_replicated,
        "unavailable_partitions": now.without_leader,
        "totals": {
            name: _sum(each[name] for each in processes if each["role"].startswith("netproc"))
            for name in ("requests_per_second", "bytes_in_per_second", "bytes_out_per_second", "connections")
        },
        "processes": processes,
        "topic_rates": _topics(before, now, passed_s),
        "group_lags": _groups(before, now, passed_s),
        "more_groups": now.more_groups,
    }


def _sum(values: Any) -> float | None:
    found = [value for value in values if value is not None]
    return round(sum(found), 1) if found else None


def _processes(before: Sample, now: Sample, passed_s: float) -> list[dict[str, Any]]:
    earlier = {(each["role"], each["generation"]): each for each in before.processes}
    found = []
    for each in now.processes:
        then = earlier.get((each["role"], each["generation"]), {})
        used = now.usage.get(each["pid"])
        used_then = before.usage.get(each["pid"])

        def rate(name: str, each: Mapping[str, Any] = each, then: Mapping[str, Any] = then) -> float | None:
            if each.get(name) is None or then.get(name) is None:
                return None
            return float(round(max(0, each[name] - then[name]) / passed_s, 1))

        idle = rate("idle_ms")
        cpu = None if used is None or used_then is None else (used.cpu_s - used_then.cpu_s) / passed_s
        found.append(
            {
                "role": each["role"],
                "pid": each["pid"],
                "state": each["state"],
                "restarts": each["restarts"],
                "idle": None if idle is None else round(min(1.0, idle / 1000), 4),
                "cpu": None if cpu is None else round(max(0.0, cpu), 4),
                "resident_bytes": None if used is None else used.resident_bytes,
                "queue": each.get("queue_depth"),
                "connections": each.get("connections"),
                "errors": each.get("errors"),
                "requests_per_second": rate("requests"),
                "bytes_in_per_second": rate("bytes_in"),
                "bytes_out_per_second": rate("bytes_out"),
            }
        )
    return found


def _topics(before: Sample, now: Sample, passed_s: float) -> list[dict[str, Any]]:
    """One object a topic that is not internal, the busiest first."""
    written: dict[str, int] = {}
    for place, end in now.ends.items():
        if place in before.ends:
            written[place[0]] = written.get(place[0], 0) + max(0, end - before.ends[place])
    rows = [
        {
            "topic": name,
            "partitions": count,
            "records_per_second": round(written[name] / passed_s, 1) if name in written else None,
        }
        for name, count in now.partitions.items()
        if not is_internal(name)
    ]
    return sorted(rows, key=lambda row: (-(row["records_per_second"] or 0), row["topic"]))


def _groups(before: Sample, now: Sample, passed_s: float) -> list[dict[str, Any]]:
    """One object a group, the one with the largest lag first."""
    rows = []
    for name, committed in now.groups.items():
        lag = sum(
            max(0, now.ends[place] - offset) for place, offset in committed.items() if place in now.ends
        )
        then = before.groups.get(name)
        read = None
        if then is not None:
            read = sum(max(0, offset - then[place]) for place, offset in committed.items() if place in then)
        rows.append(
            {
                "group": name,
                "partitions": len(committed),
                "lag": lag,
                "records_per_second": None if read is None else round(read / passed_s, 1),
            }
        )
    return sorted(rows, key=lambda row: (-row["lag"], row["group"]))
