"""What a network process counts for the metrics process, and times for the log: wires `requests.traffic`."""

from __future__ import annotations

import logging
import mmap
from typing import Final

from appliance.channels.partition_table import PartitionTable
from appliance.channels.traffic_table import TrafficPart, part_position
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.config import Settings
from appliance.ipc.agent import Timers
from appliance.ipc.shared_memory import Region
from appliance.journal import Burst
from appliance.requests.session import Session
from appliance.requests.slow_requests import LINES_PER_SECOND, SlowRequests
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.traffic import Traffic

_logger: Final = logging.getLogger(__name__)


def traffic_of(
    attachment: Attachment, routes: TopicRoutes, table: PartitionTable, timers: Timers, clock: Clock
) -> Traffic:
    """Return the counts of this network process, which go on where its last life has left them."""
    wiring = attachment.wiring
    # The view of the part keeps the mapping until the process ends.
    region = Region.open(wiring.traffic_name)
    part = TrafficPart(region.view, attachment.role.index, rows=wiring.settings.broker.max_partitions)
    return Traffic(part, routes, table, timers=timers, clock=clock, is_sending=_is_sending)


def uncounted_traffic(
    settings: Settings, routes: TopicRoutes, table: PartitionTable, timers: Timers, clock: Clock
) -> Traffic:
    """Return counts that nobody reads, for a process that only times requests: its memory is its own."""
    rows = settings.broker.max_partitions
    memory = memoryview(mmap.mmap(-1, part_position(1, rows=rows)))
    part = TrafficPart(memory, 0, rows=rows)
    return Traffic(part, routes, table, timers=timers, clock=clock, is_sending=_is_sending)


def slow_requests(threshold_ms: int, timers: Timers, clock: Clock) -> SlowRequests | None:
    """Return what logs requests that take longer than this; None for 0."""
    if not threshold_ms:
        return None
    say = Burst(
        _logger.warning,
        clock,
        at=timers.add,
        lines=LINES_PER_SECOND,
        what="slow requests",
        interval_ms=1_000,
    )
    return SlowRequests(threshold_ms, say, clock)


def _is_sending(session: Session) -> bool:
    """Return whether a session of any transport has bytes that its client has not taken."""
    return bool(getattr(session, "out", None))
