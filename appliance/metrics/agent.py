"""The agent of the metrics process: it reads shared memory when somebody asks for a page, and sleeps otherwise.

Does: serves `/metrics`, `/metrics/kafka` and the health checks over HTTP; asks the coordinators about groups while
somebody reads, and looks at logs for the age of what the groups read next; reads /proc and the free space of disks for
a page; sends the same to a collector, if one is set. Never: writes a word that another process reads; makes another
process wait; opens a log for writing; reads a record. Dies: scrapers connect again, and no counter falls, because every
count is in shared memory. It runs only where `metrics.listener` is set.

    /metrics          own names (families.py)             /healthz    200 while this process answers
    /metrics/kafka    Kafka's names (kafka_page.py)       /readyz     200 if every partition with a leader is served
                                                          /startupz   200 once the appliance has served

A page that took 20 ms to build is sent again for 200 ms, and none for more than a second. So scrapers, however many,
take about a tenth of a core at most for each kind of page.
"""

from __future__ import annotations

import logging
import os
import select
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from appliance.channels.roles import Role, RoleKind
from appliance.channels.supervision import MemoryShare, MemoryWanted
from appliance.channels.telemetry_channel import TelemetryInbox
from appliance.channels.traffic_table import kept_pages, part_position
from appliance.clock import NS_PER_MS
from appliance.errors import HostFault, OperatorFault
from appliance.ipc.process_table import BUSY_NS, REQUESTS
from appliance.ipc.shared_memory import PAGE_BYTES, Region
from appliance.journal import RateLimited
from appliance.metrics.ages import REST_MS, SLICE_EVERY_MS, AgeRounds
from appliance.metrics.client_metrics import ClientMetrics
from appliance.metrics.exposition import OPENMETRICS, TEXT, Page, accepts_openmetrics
from appliance.metrics.groups import GroupQuestions
from appliance.metrics.kafka_page import write_kafka_page
from appliance.metrics.otlp_page import OtlpPage
from appliance.metrics.own_page import Disk, Extra, has_controller, is_ready, write_own_page
from appliance.metrics.proc_files import ProcFiles, age_ms
from appliance.metrics.server import Answer, Server
from appliance.metrics.snapshot import Memory, Process, Snapshot
from appliance.process.agent import AgentProcess
from appliance.version import VERSION

if TYPE_CHECKING:
    from appliance.metrics.otlp_export import MetricsExport

LISTEN_AGAIN_MS: Final = 5_000
FRESH_FACTOR: Final = 10
FRESH_MIN_NS: Final = 50 * NS_PER_MS
FRESH_MAX_NS: Final = 1_000 * NS_PER_MS
WINDOW_NS: Final = 60_000 * NS_PER_MS
"""Of idle shares."""
QUANTILE_WINDOW_NS: Final = 300_000 * NS_PER_MS
SHARES_EVERY_NS: Final = 30_000 * NS_PER_MS
"""Between two rounds in which the supervisor looks at the memory of all processes."""
READER_NS: Final = 180_000 * NS_PER_MS
"""For so long after a page was read, somebody may read the next one."""
KEPT_EVERY_NS: Final = 30_000 * NS_PER_MS
KEPT: Final = 10
COMPLAINT_INTERVAL_MS: Final = 60_000

_logger = logging.getLogger(__name__)

_PLAIN: Final = "text/plain; charset=utf-8"


class _Built:
    """A page that was built, and until when it is sent again."""

    __slots__ = ("answer", "until_ns")

    def __init__(self, answer: Answer, until_ns: int) -> None:
        self.answer = answer
        self.until_ns = until_ns


class MetricsAgent:
    """The loop and its state; `run` returns when the supervisor sends Stop, or is gone."""

    def __init__(self, process: AgentProcess) -> None:
        settings, attachment, clock = process.settings.metrics, process.attachment, process.clock
        self._process = process
        self._settings = settings
        self._clock = clock
        self._complain = RateLimited(process.warn, clock, interval_ms=COMPLAINT_INTERVAL_MS)
        self._memory = Memory(attachment, ProcFiles(_kept_pages(process), parent=os.getppid()))
        self._groups = GroupQuestions(
            attachment, groups_max=settings.groups_max, image=attachment.image.current, clock=clock
        )
        self._ages = AgeRounds(
            found=lambda: self._groups.found.groups,
            image=attachment.image.current,
            table=attachment.partitions,
            directories=process.settings.log_directories,
            clock=clock,
        )
        self._server = Server(
            settings.address,
            process.cycle.epoll,
            self._serve,
            clock=clock,
            allowed_hosts=settings.allowed_hosts,
        )
        self._built: dict[tuple[str, bool], _Built] = {}
        self._page_ns = 0
        self._read_ns = 0
        self._has_rounds = False
        self._has_served = False
        self._idle: dict[RoleKind, deque[tuple[int, int]]] = {
            kind: deque() for kind in (RoleKind.NETPROC, RoleKind.IOPROC)
        }
        self._kept: deque[tuple[int, Sequence[int]]] = deque()
        self._running = True
        self._paths: Mapping[str, Callable[[str], Answer]] = {
            "/metrics": lambda accept: self._page("/metrics", accept),
            "/metrics/kafka": lambda accept: self._page("/metrics/kafka", accept),
            "/healthz": lambda _: Answer(200, _PLAIN, b"ok\n"),
            "/readyz": lambda _: self._fresh(("/readyz", False), self._readiness),
            "/startupz": lambda _: self._fresh(("/startupz", False), self._startup),
        }
        self._shares: dict[Role, MemoryShare] = {}
        self._shares_wanted_ns: int | None = None
        process.on_memory_share = self._note_share
        self._clients: ClientMetrics | None = None
        self._pushes: TelemetryInbox | None = None
        if settings.takes_telemetry:
            self._take_telemetry()
        self._export: MetricsExport | None = None
        self._counting_since_ns = 0
        if settings.otlp_endpoint:
            self._begin_export()
        self._listen(is_first=process.generation == 1)

    def _take_telemetry(self) -> None:
        """Take what clients push of their metrics."""
        process, settings = self._process, self._settings
        self._clients = ClientMetrics(self._clock, series_max=settings.client_series_max)
        self._pushes = TelemetryInbox(
            process.wiring, process.context, bytes_max=settings.client_telemetry_max_bytes
        )
        process.cycle.epoll.register(self._pushes.fileno(), select.EPOLLIN)

    def _begin_export(self) -> None:
        """Send the metrics to a collector from now on."""
        # Loaded where it is used: it brings HTTP and TLS along.
        from appliance.metrics.otlp_export import MetricsExport

        self._export = MetricsExport(self._settings.otlp_endpoint, self._complain)
        # Counters outlive every process but the supervisor.
        self._counting_since_ns = (self._clock.now_ms() - age_ms(os.getppid())) * NS_PER_MS
        self._process.after_ms(self._settings.otlp_interval_ms, self._send_metrics)

    def _send_metrics(self) -> None:
        """Hand the values of now to the export. The groups are asked about as if the page was read."""
        self._process.after_ms(self._settings.otlp_interval_ms, self._send_metrics)
        now_ns = self._clock.monotonic_ns()
        self._ask_about_groups(now_ns)
        self._ask_about_memory(now_ns)
        self._offer_metrics()

    def _offer_metrics(self) -> None:
        assert self._export is not None
        now = self._memory.look()
        if not now.topology.version:
            return  # the next request says whose metrics these are
        page = OtlpPage(started_ns=self._counting_since_ns, now_ns=self._clock.now_ms() * NS_PER_MS)
        write_own_page(page, now, self._extra(now))
        self._export.offer(page.request(instance=now.topology.cluster_id, version=VERSION))

    def run(self) -> None:
        """Serve until Stop."""
        process, server = self._process, self._server
        process.publish_counters(self.counters)
        process.ready()
        while self._running:
            for descriptor, mask in process.cycle.wait(self._timeout_ms()):
                if descriptor == process.supervision_fd:
                    process.hear(self)
                elif self._pushes is not None and descriptor == self._pushes.fileno():
                    self._pushes.wants_look = True
                else:
                    server.ready(descriptor, mask)
            server.expire()
            self._groups.hear()
            self._take_push()
        process.stopping()
        if self._pushes is not None:
            self._pushes.close()
        server.close()
        if self._export is not None:
            self._offer_metrics()  # what has changed since the last interval
            self._export.close()
        process.close()

    def _take_push(self) -> None:
        """Read one push of a client at most in a turn, and none while they have taken their share of the time."""
        if self._pushes is None or self._clients is None or not self._pushes.wants_look:
            return
        if not self._clients.pause_ms and (pushed := self._pushes.receive()) is not None:
            self._clients.take(pushed)

    def counters(self) -> Mapping[str, int]:
        """What this life has served and refused."""
        self._process.attachment.row.cells[REQUESTS] = self._server.requests
        return {
            "refused_requests": self._server.refused_requests,
            "ended_connections": self._server.ended_connections,
            "group_rounds": self._groups.rounds,
            "failed_group_rounds": self._groups.failed_rounds,
            "age_looks": self._ages.looks,
            "read_client_pushes": 0 if self._clients is None else self._clients.read,
            "unreadable_client_pushes": 0 if self._clients is None else self._clients.unreadable,
            "dropped_client_series": 0 if self._clients is None else self._clients.dropped_series,
            "sent_otlp_requests": 0 if self._export is None else self._export.sent,
            "failed_otlp_requests": 0 if self._export is None else self._export.failed,
        }

    def _timeout_ms(self) -> int | None:
        due_ns = self._server.next_due_ns()
        due_ms = None if due_ns is None else max(0, -(-(due_ns - self._clock.monotonic_ns()) // NS_PER_MS))
        if self._pushes is None or self._clients is None or not self._pushes.wants_look:
            return due_ms
        pause_ms = self._clients.pause_ms
        return pause_ms if due_ms is None else min(due_ms, pause_ms)

    def _listen(self, *, is_first: bool) -> None:
        """Bind the address.

        Raises:
            OperatorFault: the address cannot be bound at the start of the appliance. Later it is tried again and again,
                because a broker does not end for its metrics.
        """
        try:
            self._server.listen()
            _logger.info("metrics at http://%s/metrics", self._settings.listener)
        except HostFault as fault:
            if is_first:
                raise OperatorFault(str(fault)) from fault
            self._complain(f"{fault}; next attempt in {LISTEN_AGAIN_MS} ms")
            self._process.after_ms(LISTEN_AGAIN_MS, lambda: self._listen(is_first=False))

    # Answers

    def _serve(self, path: str, accept: str) -> Answer:
        answer = self._paths.get(path)
        if answer is None:
            known = "\n".join(self._paths)
            return Answer(404, _PLAIN, f"there is no such page; there are:\n{known}\n".encode())
        try:
            return answer(accept)
        except Exception as error:  # one page fails, and the next one may not
            self._complain(f"internal error in the page {path}: {error!r}")
            return Answer(500, _PLAIN, b"internal error: see the log of the appliance\n")

    def _readiness(self) -> Answer:
        now = self._memory.look()
        if is_ready(now):
            return Answer(200, _PLAIN, b"ready\n")
        if not now.topology.version:
            return Answer(503, _PLAIN, b"there are no metadata yet\n")
        if not now.served:
            return Answer(503, _PLAIN, b"partitions are being opened or recovered\n")
        return Answer(503, _PLAIN, b"the acceptor does not run\n")

    def _startup(self) -> Answer:
        """200 from the moment at which everything has served once; a later fault is for /readyz."""
        if not self._has_served:
            now = self._memory.look()
            self._has_served = is_ready(now) and has_controller(now)
        if self._has_served:
            return Answer(200, _PLAIN, b"started\n")
        return Answer(503, _PLAIN, b"starting\n")

    def _page(self, path: str, accept: str) -> Answer:
        now_ns = self._clock.monotonic_ns()
        self._ask_about_groups(now_ns)
        self._ask_about_memory(now_ns)
        openmetrics = accepts_openmetrics(accept)
        return self._fresh((path, openmetrics), lambda: self._built_page(path, openmetrics=openmetrics))

    def _built_page(self, path: str, *, openmetrics: bool) -> Answer:
        began_ns = self._clock.monotonic_ns()
        self._process.attachment.row.cells[REQUESTS] = self._server.requests
        page = Page(openmetrics=openmetrics)
        now = self._memory.look()
        extra = self._extra(now)
        if path == "/metrics":
            write_own_page(page, now, extra)
        else:
            write_kafka_page(page, now, extra, before=self._before(now))
        answer = Answer(200, OPENMETRICS if openmetrics else TEXT, page.text())
        self._page_ns = self._clock.monotonic_ns() - began_ns
        return answer

    def _fresh(self, key: tuple[str, bool], build: Callable[[], Answer]) -> Answer:
        """Return the answer that was built last, if it is fresh, else a new one."""
        began_ns = self._clock.monotonic_ns()
        built = self._built.get(key)
        if built is not None and began_ns < built.until_ns:
            return built.answer
        answer = build()
        ended_ns = self._clock.monotonic_ns()
        fresh_ns = min(max(FRESH_MIN_NS, FRESH_FACTOR * (ended_ns - began_ns)), FRESH_MAX_NS)
        self._built[key] = _Built(answer, ended_ns + fresh_ns)
        return answer

    def _extra(self, now: Snapshot) -> Extra:
        found = self._groups.found
        listed = sorted(found.groups.values(), key=lambda group: group.name)
        shown = listed[: self._settings.groups_max]
        return Extra(
            groups=shown,
            groups_without_series=found.unlisted + len(listed) - len(shown),
            groups_age_seconds=(now.monotonic_ns - found.began_ns) / 1e9 if found.began_ns else None,
            disks=self._disks(now),
            network_idle=self._idle_share(now, RoleKind.NETPROC),
            worker_idle=self._idle_share(now, RoleKind.IOPROC),
            page_seconds=self._page_ns / 1e9,
            with_partitions=self._settings.partitions,
            ages=self._ages.ages,
            now_ms=self._clock.now_ms(),
            shares=self._shares,
            clients=self._clients,
            sends_otlp=self._export is not None,
        )

    def _disks(self, now: Snapshot) -> list[Disk]:
        found: list[Disk] = []
        settings = self._process.settings
        for slot in sorted(now.topology.brokers):
            if slot >= settings.slots:
                continue
            for directory in settings.log_directories(slot):
                with suppress(OSError):  # a disk that has failed, which another series says
                    room = os.statvfs(directory)
                    found.append(
                        Disk(
                            slot, str(directory), room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
                        )
                    )
        return found

    # Windows

    def _idle_share(self, now: Snapshot, kind: RoleKind) -> float:
        """Return the share of the last minute in which processes of a kind slept; before, of their whole lives."""
        processes = now.of_kind(kind)
        idle_ns = sum(each.idle_ns for each in processes)
        samples = self._idle[kind]
        samples.append((now.monotonic_ns, idle_ns))
        while len(samples) > 2 and samples[1][0] <= now.monotonic_ns - WINDOW_NS:
            samples.popleft()
        then_ns, idle_before_ns = samples[0]
        passed_ns = (now.monotonic_ns - then_ns) * len(processes)
        if passed_ns > 0:
            return round(min(1.0, max(0.0, (idle_ns - idle_before_ns) / passed_ns)), 4)
        return _lifelong_share(processes)

    def _before(self, now: Snapshot) -> Sequence[int] | None:
        """Return the counts of some minutes ago; None before there are some."""
        kept = self._kept
        if not kept or now.monotonic_ns - kept[-1][0] >= KEPT_EVERY_NS:
            kept.append((now.monotonic_ns, now.apis))
        while len(kept) > KEPT or (len(kept) > 1 and kept[1][0] <= now.monotonic_ns - QUANTILE_WINDOW_NS):
            kept.popleft()
        then_ns, apis = kept[0]
        return apis if now.monotonic_ns - then_ns >= KEPT_EVERY_NS else None

    # Groups

    def _ask_about_groups(self, now_ns: int) -> None:
        """A page was read. Its groups are those of the last round, and the next rounds follow by themselves."""
        self._read_ns = now_ns
        if self._settings.groups_max and not self._has_rounds:
            self._has_rounds = True
            self._next_round()
            self._look_at_logs()

    def _next_round(self) -> None:
        self._has_rounds = self._clock.monotonic_ns() - self._read_ns < READER_NS
        if self._has_rounds:
            self._groups.begin()
            self._process.after_ms(self._settings.groups_interval_ms, self._next_round)

    def _ask_about_memory(self, now_ns: int) -> None:
        """A page was read: what the supervisor answers is on later ones."""
        if self._shares_wanted_ns is None or now_ns - self._shares_wanted_ns >= SHARES_EVERY_NS:
            self._shares_wanted_ns = now_ns
            self._process.supervision.send(MemoryWanted())

    def _note_share(self, share: MemoryShare) -> None:
        self._shares[share.role] = share
        self._memory.note_share(share)

    def _look_at_logs(self) -> None:
        if self._has_rounds:
            self._ages.slice()
            pause_ms = SLICE_EVERY_MS if self._ages.is_under_way else REST_MS
            self._process.after_ms(pause_ms, self._look_at_logs)

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End at once: a scraper asks again."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Nothing: the next round asks the coordinator."""

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """What a dead coordinator was asked is not answered."""
        self._shares.pop(peer, None)
        if had_rings:
            self._groups.coordinator_down(peer)


def _kept_pages(process: AgentProcess) -> list[memoryview]:
    """Return the pages in which this process keeps what it must know after a restart."""
    settings, wiring = process.settings, process.wiring
    first = part_position(settings.network.processes, rows=settings.broker.max_partitions)
    return [
        Region.open_page(wiring.traffic_name, first + page * PAGE_BYTES).view.cast("q")
        for page in range(kept_pages(len(wiring.planned)))
    ]


def _lifelong_share(processes: Sequence[Process]) -> float:
    idle_ns = sum(each.idle_ns for each in processes)
    lived_ns = idle_ns + sum(each.totals[BUSY_NS] for each in processes)
    return round(idle_ns / lived_ns, 4) if lived_ns else 1.0
