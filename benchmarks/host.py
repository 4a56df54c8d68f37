"""From the figures of a run on a small machine to a host of 64 cores and 12 disks, by arithmetic that shows itself.

    one-record requests   min(cores of network processes / µs in one, workers / µs in one); workers = slots × io.workers
    bytes                 the card's rate × CPU s/GB = cores that it takes; in: workers / CPU s/GB of a worker's own
    memory                idle: base + network processes + slots + partitions + connections, each at its measured price
    start after SIGKILL   bytes past the recovery points / what one worker reads again a second, or / the disks;
                          from the slowest to the fastest kept page of the log

Nothing here was measured on such a host; `docs/scaling.md` says what is assumed.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.growth import growths
from benchmarks.page import number
from benchmarks.results import OURS, Run

RECOVERY = re.compile(r"^recovery, warm +[\d.]+ +(\d+)$", re.MULTILINE)
"""Its line on the log's own page, MB/s: read out of the page cache, so that only the worker bounds it."""
BUILD = re.compile(r"^(\w+) build;", re.MULTILINE)
"""Which build such a page is of."""


@dataclass(frozen=True, slots=True)
class Host:
    """What is assumed."""

    cores: int = 64
    network_processes: int = 20
    slots: int = 12
    """A replica process each."""
    workers: int = 1
    """Of each slot."""
    card_gb_s: float = 12.5
    """100 Gbit/s."""
    disks: int = 12
    fast_disk_gb_s: float = 2.0
    slow_disk_gb_s: float = 0.15
    partitions: int = 10_000
    connections: int = 5_000
    recovered_gib: int = 500
    """Past the recovery points: half a segment in each of 1,000 partitions that are written to."""

    @property
    def all_workers(self) -> int:
        """Of all slots."""
        return self.slots * self.workers


def options(host: Host | None = None) -> dict[str, str]:
    """What the host is told: options of `appliance serve`."""
    host = host or Host()
    return {
        "network.processes": str(host.network_processes),
        "slots": str(host.slots),
        "io.workers": str(host.workers),
    }


def arithmetic(run: Run, growth: Run | None = None, *log_pages: str, host: Host | None = None) -> str:
    """A table in Markdown, from the run, the newest about growth and the log's own pages; a line whose figures they do
    not have is left out."""
    host = host or Host()
    taken = _Taken(run)
    lines = [
        f"Source: the [run of {run.date}](../benchmarks/results/{run.name}.md), appliance {run.versions[OURS]}.",
        "",
        "| question | arithmetic | answer | limited by |",
        "|---|---|---|---|",
        *filter(None, (_requests(taken, host), *_bytes(taken, host), _partition(taken))),
        *filter(None, (_memory(taken, growth, host), _start(growth, host), _recovery(log_pages, host))),
    ]
    return "\n".join(lines)


class _Taken:
    """Medians of ours, by key."""

    def __init__(self, run: Run) -> None:
        self._rounds = run.taken.get(OURS, [])

    def __getitem__(self, key: str) -> float | None:
        found = [figures[key] for figures in self._rounds if key in figures]
        return statistics.median(found) if found else None

    def by_title(self, prefix: str, word: str) -> list[float]:
        """One of each process whose title holds `word`."""
        names = {key for figures in self._rounds for key in figures if key.startswith(f"{prefix} ")}
        return [self[name] or 0.0 for name in sorted(names) if word in name]


def _requests(taken: _Taken, host: Host) -> str:
    for case in ("requests_64", "requests_50"):
        network = sum(taken.by_title(f"{case}.cpu_us_per_request", "netproc"))
        worker = sum(taken.by_title(f"{case}.cpu_us_per_request", "ioproc"))
        if network and worker:
            millions = host.network_processes / network, host.all_workers / worker
            bound = "network processes" if millions[0] < millions[1] else "workers"
            return (
                f"| one-record requests | a request takes {network:.1f} µs of processor time in a network process and "
                f"{worker:.1f} µs in a worker. {host.network_processes} network processes handle "
                f"{host.network_processes} / {network:.1f} µs, and {host.all_workers} workers handle "
                f"{host.all_workers} / {worker:.1f} µs | {min(millions):.1f} million/s | {bound} |"
            )
    return ""


def _bytes(taken: _Taken, host: Host) -> tuple[str, ...]:
    told = []
    disks = host.disks * host.slow_disk_gb_s
    for way, where, more in (
        (
            "in",
            "",
            f"the network card. Spinning disks limit the rate to {host.disks} × {host.slow_disk_gb_s * 1000:.0f} MB/s "
            f"= {disks:.1f} GB/s",
        ),
        (
            "out",
            ". This price was measured with clients on the same host, for which the broker copies the records. "
            "For clients on other hosts it uses `sendfile` (decision 0025)",
            "the network card, if the records are in the page cache, and if `sendfile` for clients on other hosts "
            "costs no more than the copy (**not measured** over a network card)",
        ),
    ):
        price, of_workers = (taken[f"throughput_1k.{way}_{part}cpu_s_per_gb"] for part in ("", "worker_"))
        if price:
            needed = host.card_gb_s * price
            limits = [(host.card_gb_s, more), (host.cores / 2 / price, f"half of the cores, then {more}")]
            asked = ""
            if of_workers:
                limits.append((host.all_workers / of_workers, f"the workers' cores, then {more}"))
                asked = (
                    f". A worker needs {of_workers:.2f} CPU s/GB of this, so {host.all_workers} workers accept "
                    f"{host.all_workers} / {of_workers:.2f} = {host.all_workers / of_workers:.1f} GB/s"
                )
            most, bound = min(limits)
            told.append(
                f"| bytes {way}, 1 KiB records | {price:.2f} CPU s/GB × {host.card_gb_s} GB/s "
                f"of a 100 Gbit/s card = {needed:.0f} of {host.cores // 2} cores{where}{asked} "
                f"| {most:.1f} GB/s | {bound} |"
            )
    return tuple(told)


def _partition(taken: _Taken) -> str:
    speed = taken["pinned/throughput_1k.in_mb_s"] or taken["throughput_1k.in_mb_s"]
    if not speed:
        return ""
    where = "pinned" if taken["pinned/throughput_1k.in_mb_s"] else "as shipped"
    of_worker = taken["throughput_1k.in_worker_cpu_s_per_gb"]
    alone = f". A worker with its own core needs {of_worker:.2f} CPU s/GB" if of_worker else ""
    most = f" to {number(1000 / of_worker)}" if of_worker and 1000 / of_worker > speed else ""
    return (
        f"| one partition, in | one worker uses one core on any host. We measured {number(speed)} MB/s ({where}), with "
        f"the network process and the worker on one core{alone} | {number(speed)}{most} MB/s | that core |"
    )


def _memory(taken: _Taken, growth: Run | None, host: Host) -> str:
    base, partition = taken["idle.pss_mb"], taken["start_1000.kb_per_partition"]
    connection = taken["idle_connections.kb_per_connection"]
    if base is None or partition is None or connection is None:
        return ""
    # The larger: a first request makes pages a network process's own, and each of many will have had one.
    network = max(taken.by_title("idle.pss_mb", "netproc"), default=None)
    slot, worker = _price_mb(growth, "scale_slots"), _price_mb(growth, "scale_workers")
    if network is None or slot is None or worker is None:
        return ""
    more = [
        (host.network_processes - 2, "more network processes", network),
        (host.slots - 1, "more slots with a worker and a replica process each", slot),
        (host.all_workers - host.slots, "more workers", worker),
    ]
    whole = (
        base
        + sum(count * price for count, _, price in more)
        + (host.partitions * max(partition, 0.0) + host.connections * max(connection, 0.0)) / 1000
    )
    processes = " + ".join(f"{count} {what} × {price:.1f} MB" for count, what, price in more if count)
    return (
        f"| memory of the broker, idle | {base:.0f} MB + {processes} "
        f"+ {host.partitions:,} partitions × {partition:.1f} KB "
        f"+ {host.connections:,} connections × {connection:.1f} KB "
        f"| {whole / 1000:.1f} GB | the rest is page cache |"
    )


def _price_mb(growth: Run | None, case: str) -> float | None:
    """Memory of one more, over all points of a growth."""
    points = growths(growth).get(case, {}).get(("pss_mb", OURS), []) if growth else []
    if len(points) < 2:
        return None
    (few, base), (many, whole) = points[0], points[-1]
    return (whole - base) / (many - few)


def _start(growth: Run | None, host: Host) -> str:
    points = growths(growth).get("scale_partitions", {}).get(("start_ms", OURS), []) if growth else []
    many = dict(points).get(host.partitions)
    if many is None:
        return ""
    return (
        f"| clean start, {host.partitions:,} partitions | as measured with one worker | {many / 1000:.1f} s at most "
        f"| opening segments. We have not measured {host.all_workers} workers |"
    )


def _recovery(log_pages: Sequence[str], host: Host) -> str:
    # Of each page the last: the longest log.
    speeds = sorted(int(found[-1]) / 1000 for found in map(RECOVERY.findall, log_pages) if found)
    if not speeds:
        return ""
    gigabytes = host.recovered_gib * 1.074
    slowest_s, fastest_s = (gigabytes / gb_s / host.all_workers for gb_s in (speeds[0], speeds[-1]))
    fast, slow = (gigabytes / host.disks / rate for rate in (host.fast_disk_gb_s, host.slow_disk_gb_s))
    builds = sorted({f", {build} build" for page in log_pages for build in BUILD.findall(page)})
    pages = f", {len(speeds)} kept pages" if len(speeds) > 1 else ""
    return (
        f"| start after `kill -9`, {host.recovered_gib} GiB past the recovery points | one worker reads "
        f"{_span(speeds[0], speeds[-1], '.2f')} GB/s (`make bench-log`, warm{''.join(builds)}{pages}). "
        f"{host.all_workers} workers read {gigabytes:.0f} GB in {_span(fastest_s, slowest_s, '.0f')} s. "
        f"{host.disks} disks deliver them in {fast:.0f} s at {host.fast_disk_gb_s:g} GB/s each, and in {slow:.0f} s at "
        f"{host.slow_disk_gb_s:g} GB/s each "
        f"| {max(fastest_s, fast):.0f} to {max(slowest_s, slow):.0f} s | the workers or the disks: the slower ones |"
    )


def _span(low: float, high: float, form: str) -> str:
    """Both, or one where they are shown alike."""
    shown = f"{low:{form}}", f"{high:{form}}"
    return shown[0] if shown[0] == shown[1] else " to ".join(shown)
