"""Wires a network process: shared memory, controller, acceptor, then the duty cycle of `processor`."""

from __future__ import annotations

import logging
import os

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.controller_link import ControllerLink
from appliance.channels.supervision import Ready
from appliance.clock import SystemClock
from appliance.ipc.agent import freeze_garbage
from appliance.netproc.fan_out import FanOut
from appliance.netproc.processor import Processor
from appliance.requests.local_requests import prepare_codecs

_log = logging.getLogger(__name__)


def before_fork() -> None:
    """Compile the codecs of what the first client of each network process asks."""
    prepare_codecs()


def run(child: Child) -> int:
    """The life of one network process; its exit code."""
    attachment = child.attach()
    clock = SystemClock()
    attachment.row.start(os.getpid(), child.generation, now_ms=clock.now_ms(), now_ns=clock.monotonic_ns())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    controller = ControllerLink(child.wiring, child.role, child.generation, context=context)
    fan_out = FanOut(child.wiring, child.role, child.generation, context=context, clock=clock)
    processor = Processor(
        attachment, controller, child.supervision, fan_out=fan_out, clock=clock, warn=_log.warning
    )
    freeze_garbage()
    child.supervision.send(Ready())
    processor.join()
    processor.run()
    context.term()
    return EXIT_CLEAN
