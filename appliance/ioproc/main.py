"""The I/O worker process: wires the agent to what the supervisor gave it and to the controller. See worker.py.

The agent sends Ready, once the controller has named its partitions and their logs are open.
"""

from __future__ import annotations

import logging

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.controller_link import ControllerLink
from appliance.ioproc.worker import WorkerAgent
from appliance.ipc.agent import freeze_garbage
from appliance.ipc.time_slice import ask_for_short_slice
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.process.agent import AgentProcess

_log = logging.getLogger(__name__)


def run(child: Child) -> int:
    """The life of one worker; its exit code."""
    if not ask_for_short_slice():
        _log.info("the system gives no short time slice: records may wait for the rest of another's")
    process = AgentProcess(child)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    controller = ControllerLink(child.wiring, child.role, child.generation, context=context)
    broker = child.settings.broker
    PRODUCER_LIMITS.set(per_log=broker.producer_ids_per_partition_max, in_process=broker.producer_ids_max)
    agent = WorkerAgent(process, controller)
    freeze_garbage()
    agent.run()
    context.term()
    return EXIT_CLEAN
