"""The I/O worker process: wires the agent to what the supervisor gave it and to the controller. See worker.py.

The agent sends Ready, once the controller has named its partitions and their logs are open.
"""

from __future__ import annotations

import logging

from appliance.channels.child import Child
from appliance.ioproc.worker import WorkerAgent
from appliance.ipc.time_slice import ask_for_short_slice
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.process.agent import AgentProcess, run_agent

_log = logging.getLogger(__name__)


def run(child: Child) -> int:
    """The life of one worker; its exit code."""
    if not ask_for_short_slice():
        _log.info(
            "the kernel does not support short scheduler slices (Linux 6.12 or later does); tail latency may be higher"
        )
    return run_agent(child, _wire)


def _wire(process: AgentProcess) -> WorkerAgent:
    broker = process.settings.broker
    PRODUCER_LIMITS.set(per_log=broker.producer_ids_per_partition_max, in_process=broker.producer_ids_max)
    return WorkerAgent(process, process.controller_link())
