"""Wires an I/O worker: shared memory, controller, then the duty cycle of `worker`.

Ready is said by the worker itself, once the controller has named its partitions and their logs are open.
"""

from __future__ import annotations

import logging
import os

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.controller_link import ControllerLink
from appliance.clock import SystemClock
from appliance.ioproc.worker import Worker
from appliance.ipc.agent import freeze_garbage
from appliance.ipc.time_slice import ask_for_short_slice
from appliance.log.producer_limits import PRODUCER_LIMITS

_log = logging.getLogger(__name__)


def run(child: Child) -> int:
    """The life of one worker; its exit code."""
    if not ask_for_short_slice():
        _log.info(
            "the kernel does not support short scheduler slices (Linux 6.12 or later does); tail latency may be higher"
        )
    attachment = child.attach()
    clock = SystemClock()
    attachment.row.start(os.getpid(), child.generation, now_ms=clock.now_ms(), now_ns=clock.monotonic_ns())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    controller = ControllerLink(child.wiring, child.role, child.generation, context=context)
    broker = child.wiring.settings.broker
    PRODUCER_LIMITS.set(per_log=broker.producer_ids_per_partition_max, in_process=broker.producer_ids_max)
    worker = Worker(attachment, controller, child.supervision, clock=clock, warn=_log.warning)
    freeze_garbage()
    worker.run()
    context.term()
    return EXIT_CLEAN
