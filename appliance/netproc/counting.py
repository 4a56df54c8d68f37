"""What a network process counts for the metrics process, where there is one: wires `requests.traffic`."""

from __future__ import annotations

from appliance.channels.partition_table import PartitionTable
from appliance.channels.traffic_table import TrafficPart
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.ipc.agent import Timers
from appliance.ipc.shared_memory import Region
from appliance.requests.session import Session
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.traffic import Traffic


def traffic_of(
    attachment: Attachment, routes: TopicRoutes, table: PartitionTable, timers: Timers, clock: Clock
) -> Traffic:
    """Return the counts of this network process, which go on where its last life has left them."""
    wiring = attachment.wiring
    # The view of the part keeps the mapping until the process ends.
    region = Region.open(wiring.traffic_name)
    part = TrafficPart(region.view, attachment.role.index, rows=wiring.settings.broker.max_partitions)
    return Traffic(part, routes, table, timers=timers, clock=clock, is_sending=_is_sending)


def _is_sending(session: Session) -> bool:
    """Return whether a session of any transport has bytes that its client has not taken."""
    return bool(getattr(session, "out", None))
