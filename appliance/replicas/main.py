"""Wires a replica process: shared memory, controller, then the duty cycle.

Ready is said by the replica itself, once the controller has named its partitions and their logs are open.
"""

from __future__ import annotations

import os

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.controller_link import ControllerLink
from appliance.clock import SystemClock
from appliance.ipc.agent import freeze_garbage
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.replicas.agent import Replica


def run(child: Child) -> int:
    """The life of one replica process; its exit code."""
    attachment = child.attach()
    clock = SystemClock()
    attachment.row.start(os.getpid(), child.generation, now_ms=clock.now_ms(), now_ns=clock.monotonic_ns())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    controller = ControllerLink(child.wiring, child.role, child.generation, context=context)
    broker = child.wiring.settings.broker
    PRODUCER_LIMITS.set(per_log=broker.producer_ids_per_partition_max, in_process=broker.producer_ids_max)
    replica = Replica(attachment, controller, child.supervision, clock=clock)
    freeze_garbage()
    replica.run()
    context.term()
    return EXIT_CLEAN
