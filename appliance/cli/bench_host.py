"""What stands above the figures of `appliance bench`: versions, processor, memory, disk. It names no host or user."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from appliance.build import build
from appliance.cli.output import shown_bytes
from appliance.version import VERSION

_CHUNK: Final = bytes(1 << 20)
DISK_TEST_BYTES: Final = 64 << 20
_FLUSHES: Final = 20
_MOUNT_FIELDS: Final = 3


def host_facts(place: Path | None) -> dict[str, Any]:
    """Return what a reader needs to judge the figures; None where this system does not say it.

    Args:
        place: the directory of the broker's data; None for a broker elsewhere.
    """
    memory = _memory()
    facts: dict[str, Any] = {
        "appliance": VERSION,
        "build": build(),
        "python": platform.python_version(),
        "librdkafka": _librdkafka(),
        "kernel": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "hypervisor": "hypervisor" in _cpuinfo("flags").split(),
        "memory_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "disk": None,
    }
    if place is not None:
        facts["disk"] = _disk(place)
    return facts


def _librdkafka() -> str | None:
    from confluent_kafka import libversion

    return str(libversion()[0])


def _cpuinfo(name: str) -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _processor() -> str:
    return _cpuinfo("model name") or platform.machine()


def _memory() -> dict[str, int]:
    found = {}
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            found[name] = int(value.split()[0]) * 1024
    return found


def _disk(place: Path) -> dict[str, Any]:
    """Return the file system of a directory, and what it does without a broker."""
    room = shutil.disk_usage(place)
    return {
        "file_system": _file_system(place),
        "free_bytes": room.free,
        **_written(place),
    }


def _file_system(place: Path) -> str | None:
    """Return the type of the file system that holds a directory."""
    path = place.resolve()
    best: tuple[int, str] | None = None
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
            fields = line.split()
            if len(fields) >= _MOUNT_FIELDS and path.is_relative_to(fields[1].replace("\\040", " ")):
                candidate = (len(fields[1]), fields[2])
                best = candidate if best is None or candidate[0] >= best[0] else best
    return None if best is None else best[1]


def _written(place: Path) -> dict[str, Any]:
    """Return how fast the disk takes a file that is flushed, and how long a small flush takes."""
    path = place / "disk-test"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        began_s = time.monotonic()
        for _ in range(DISK_TEST_BYTES // len(_CHUNK)):
            os.write(descriptor, _CHUNK)
        os.fdatasync(descriptor)
        took_s = time.monotonic() - began_s
        flushes_s = []
        for _ in range(_FLUSHES):
            os.write(descriptor, _CHUNK[:4096])
            began_s = time.monotonic()
            os.fdatasync(descriptor)
            flushes_s.append(time.monotonic() - began_s)
    finally:
        os.close(descriptor)
        path.unlink()
    return {
        "write_megabytes_per_second": round(DISK_TEST_BYTES / took_s / 1e6, 1),
        "flush_ms": round(sorted(flushes_s)[_FLUSHES // 2] * 1e3, 3),
    }


def fact_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts as people read them."""
    yield "appliance", f"{facts['appliance']} ({facts['build']} build), Python {facts['python']}"
    yield "client", f"librdkafka {facts['librdkafka']}, one process"
    kind = ", virtual machine" if facts["hypervisor"] else ""
    yield "processor", f"{facts['processor']}, {facts['processors']} usable{kind}"
    if facts["memory_bytes"] is not None:
        available = facts["memory_available_bytes"]
        free = "" if available is None else f", {shown_bytes(available)} available"
        yield "memory", f"{shown_bytes(facts['memory_bytes'])}{free}"
    yield "kernel", f"{facts['kernel']}, load before {facts['load_average'][0]:g}"
    disk = facts["disk"]
    if disk is not None:
        yield (
            "disk",
            f"{disk['file_system']}, {shown_bytes(disk['free_bytes'])} free, writes"
            f" {disk['write_megabytes_per_second']:,.0f} MB/s, flush {disk['flush_ms']:g} ms",
        )
