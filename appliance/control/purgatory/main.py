"""The purgatory process: wires the duty cycle to what the supervisor gave it. See agent.py for what it
does.

It cannot fail to start unless shared memory is missing, which is then the end of this life.
"""

from __future__ import annotations

import os

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.supervision import Ready
from appliance.clock import SystemClock
from appliance.control.purgatory.agent import PurgatoryDutyCycle
from appliance.ipc.agent import freeze_garbage
from appliance.ipc.process_table import ProcessState


def run(child: Child) -> int:
    """One life of the purgatory; its exit code."""
    clock = SystemClock()
    attachment = child.attach()
    attachment.row.start(os.getpid(), child.generation, now_ms=clock.now_ms(), now_ns=clock.monotonic_ns())
    duty_cycle = PurgatoryDutyCycle(attachment, child.supervision, clock=clock)
    freeze_garbage()
    attachment.row.set_state(ProcessState.RUNNING)
    child.supervision.send(Ready())
    duty_cycle.run()
    return EXIT_CLEAN
