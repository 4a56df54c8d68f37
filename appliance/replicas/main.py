"""The replica process: wires the agent to what the supervisor gave it and to the controller. See agent.py.

The agent sends Ready, once the controller has named its partitions and their logs are open.
"""

from __future__ import annotations

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.controller_link import ControllerLink
from appliance.ipc.agent import freeze_garbage
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.process.agent import AgentProcess
from appliance.replicas.agent import ReplicaAgent


def run(child: Child) -> int:
    """The life of one replica process; its exit code."""
    process = AgentProcess(child)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    controller = ControllerLink(child.wiring, child.role, child.generation, context=context)
    broker = child.settings.broker
    PRODUCER_LIMITS.set(per_log=broker.producer_ids_per_partition_max, in_process=broker.producer_ids_max)
    agent = ReplicaAgent(process, controller)
    freeze_garbage()
    agent.run()
    context.term()
    return EXIT_CLEAN
