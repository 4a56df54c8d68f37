"""Overview with live charts, and the processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from appliance.channels.counter_names import BOUNDS
from appliance.console.history import SERIES
from appliance.console.kafka_link import BrokerFault, LoginRefused
from appliance.console.server import Response
from appliance.console.visit import Visit
from appliance.ipc.process_table import ProcessState

EVENT_WAIT_S = 15.0
"""Without a new point for so long, a stream sends a comment, so that proxies do not end it."""
NEEDS_DESCRIBE: Final = "this needs the operation Describe on the cluster"


def overview(visit: Visit) -> Response:
    """The cluster in numbers, disks, and charts of the last minutes."""
    if not visit.may_describe_cluster:
        return visit.page("overview.html", is_allowed=False)
    look = visit.look
    topology = look.snapshot.topology
    latest = visit.site.history.latest()
    return visit.page(
        "overview.html",
        is_allowed=True,
        topology=topology,
        offline=look.snapshot.offline_partitions,
        under_replicated=sum(topology.under_replicated.values()),
        under_min_isr=sum(topology.under_min_isr.values()),
        log_bytes=look.snapshot.log_bytes,
        segments=look.snapshot.segments,
        disks=look.disks,
        series=SERIES,
        values=latest.values if latest else {},
        restarts=sum(max(0, each.generation - 1) for each in look.snapshot.processes),
        down=[each.name for each in look.snapshot.processes if not each.usage.is_running],
        bounds=[
            (each.name, name, BOUNDS[name], value)
            for each in look.snapshot.processes
            for name, value in each.counters.items()
            if value and name in BOUNDS
        ],
    )


def events(visit: Visit) -> Response:
    """The charts' points: all that there are, then each new one."""
    if not visit.may_describe_cluster:
        return visit.page("error.html", status=403, text=NEEDS_DESCRIBE)
    return Response(content_type="text/event-stream", stream=_events(visit))


def _events(visit: Visit) -> Iterator[bytes]:
    site = visit.site
    with site.streams.one(visit.session):
        points = site.history.points()
        last = points[-1].number if points else 0
        yield event("points", [point.as_json() for point in points])
        while not site.history.is_closed and site.sessions.is_open(
            visit.session, now_ns=site.clock.monotonic_ns()
        ):
            # The newest, however many there were meanwhile: a slow reader misses points, and nothing queues.
            point = site.history.wait(last, EVENT_WAIT_S)
            if point is None:
                yield b": still here\n\n"
                continue
            last = point.number
            # The right may have been taken away since the stream began.
            try:
                is_allowed = visit.as_of_now().may_describe_cluster
            except BrokerFault as fault:
                if fault.code is None and not isinstance(fault, LoginRefused):
                    continue  # a slot restarts: this point is left out
                is_allowed = False
            if not is_allowed:
                yield event("ended", NEEDS_DESCRIBE)
                return
            yield event("points", [point.as_json()])


def event(name: str, data: object) -> bytes:
    """Return a server-sent event. JSON has no line ends outside of strings, and none inside."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def processes(visit: Visit) -> Response:
    """Slots and processes: restarts, idle share, memory, counters."""
    if not visit.may_describe_cluster:
        return visit.page("error.html", status=403, text=NEEDS_DESCRIBE)
    look = visit.look
    return visit.page(
        "processes.html",
        processes=look.snapshot.processes,
        idle={each.name: look.idle_share(each) for each in look.snapshot.processes},
        states={each.name: ProcessState(each.row.state).name.lower() for each in look.snapshot.processes},
        topology=look.snapshot.topology,
        slots=visit.image.slots,
        log_bytes=look.snapshot.log_bytes,
    )
