"""The head of `appliance status`: address, version, uptime, disks, topics.

Everything but the topics comes from files and the system, so it is there while every process is stuck. Slot 0 is asked
about the topics; where it does not answer within a second they are null. If its main listener is encrypted, and the
flags of the command do not say how to connect, the topics come from the metadata image in shared memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.options import says_how_to_connect
from appliance.cli.output import shown_bytes
from appliance.config.sections.listeners import PLAINTEXT, host_and_port

if TYPE_CHECKING:
    from appliance.cluster import ClusterImage

ASK_TIMEOUT_S: Final = 1.0
FULL_BYTES: Final = 1 << 20
ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def summary(
    facts: Mapping[str, Any],
    processes: Sequence[Mapping[str, Any]],
    *,
    running: bool,
    image: Callable[[], ClusterImage | None] = lambda: None,
) -> dict[str, Any]:
    """The keys are stable; null is what is not known.

    Args:
        facts: what the supervisor wrote down at its start.
        processes: as `status` tells them.
        running: whether any of them lives.
        image: reads the metadata image.
    """
    host, port, started_ms = facts.get("host"), facts.get("port"), facts.get("started_ms")
    address = host_and_port(host, port) if isinstance(host, str) and isinstance(port, int) else None
    told: dict[str, Any] = {
        "address": address,
        "version": facts.get("version"),
        "slots": facts.get("slots"),
        "uptime_ms": None,
        "log_dirs": _log_dirs(facts, processes),
        "topics": None,
        "partitions": None,
        "under_replicated_partitions": None,
        "unavailable_partitions": None,
    }
    if running and isinstance(host, str) and isinstance(port, int):
        if isinstance(started_ms, int):
            told["uptime_ms"] = max(0, time.time_ns() // 1_000_000 - started_ms)
        if facts.get("security_protocol", PLAINTEXT) == PLAINTEXT or says_how_to_connect():
            told |= _counts(host_and_port(ANY_ADDRESS.get(host, host), port))
        else:
            told |= _counts_of(image())
    return told


def _log_dirs(facts: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each log directory with the room of its file system, and why it has failed."""
    failed = {
        path: process.get("failed_log_dir_reason")
        for process in processes
        for path in process.get("failed_log_dirs", ())
    }
    found = []
    listed = facts.get("log_dirs")
    for slot, paths in enumerate(listed if isinstance(listed, list) else ()):
        for path in paths:
            total_bytes = usable_bytes = None
            met = None
            try:
                room = os.statvfs(path)
                total_bytes, usable_bytes = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
            except OSError as fault:
                met = fault.strerror
            found.append(
                {
                    "slot": slot,
                    "path": path,
                    "total_bytes": total_bytes,
                    "usable_bytes": usable_bytes,
                    "error": failed.get(path) or met or ("it has failed" if path in failed else None),
                }
            )
    return found


def _counts(address: str) -> dict[str, int]:
    """Of topics and partitions; empty where the broker does not answer in time."""
    from appliance.cli.connecting import BrokerError
    from appliance.cli.request import request
    from appliance.protocol.api_versions import ApiKey
    from appliance.protocol.apis.metadata import MetadataRequest

    with suppress(BrokerError):
        body = MetadataRequest(None, allow_auto_topic_creation=False)
        topics = request(address, ApiKey.METADATA, 12, body, timeout_s=ASK_TIMEOUT_S).topics
        partitions = [each for topic in topics for each in topic.partitions]
        return {
            "topics": len(topics),
            "partitions": len(partitions),
            "under_replicated_partitions": sum(
                len(each.isr_nodes) < len(each.replica_nodes) for each in partitions
            ),
            "unavailable_partitions": sum(each.leader_id < 0 for each in partitions),
        }
    return {}


def _counts_of(image: ClusterImage | None) -> dict[str, int]:
    """The same from the metadata image; empty where there is none."""
    if image is None:
        return {}
    partitions = [each for topic in image.topics.values() for each in topic.partitions]
    return {
        "topics": len(image.topics),
        "partitions": len(partitions),
        "under_replicated_partitions": sum(len(each.isr) < len(each.replicas) for each in partitions),
        "unavailable_partitions": sum(each.leader < 0 for each in partitions),
    }


def print_summary(told: Mapping[str, Any], data_dir: str) -> None:
    """A few lines above the table; none where the supervisor left no facts."""
    if told["address"] is None:
        return
    version = f" {told['version']}" if told["version"] else ""
    uptime = f", up {shown_duration(told['uptime_ms'])}" if told["uptime_ms"] is not None else ""
    click.echo(f"appliance{version} on {told['address']}{uptime}, data in {data_dir}")
    if told["topics"] is None:
        click.echo("topics: the broker does not answer")
    else:
        click.echo(
            f"{_counted(told['slots'], 'slot')}, {_counted(told['topics'], 'topic')},"
            f" {_counted(told['partitions'], 'partition')}: {_health(told)}"
        )
    for each in told["log_dirs"]:
        click.echo(f"log directory {each['path']}: {_room(each)}")
    click.echo()


def _health(told: Mapping[str, Any]) -> str:
    parts = [
        f"{told[key]} {word}"
        for key, word in (
            ("under_replicated_partitions", "under-replicated"),
            ("unavailable_partitions", "without a leader"),
        )
        if told[key]
    ]
    return ", ".join(parts) or "all in sync"


def _room(directory: Mapping[str, Any]) -> str:
    if directory["error"] is not None:
        return f"failed: {directory['error']}"
    free = f"{shown_bytes(directory['usable_bytes'])} of {shown_bytes(directory['total_bytes'])} free"
    return f"the disk is full, {free}" if directory["usable_bytes"] < FULL_BYTES else free


def _counted(count: int | None, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def shown_duration(duration_ms: int) -> str:
    """`42 s`, `7 min`, `3.5 h`, `12 d`."""
    seconds = max(0, duration_ms) / 1000
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86_400:.0f} d"
