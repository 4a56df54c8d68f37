"""The replica process: wires the agent to what the supervisor gave it and to the controller. See agent.py.

The agent sends Ready, once the controller has named its partitions and their logs are open.
"""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.log.producer_limits import PRODUCER_LIMITS
from appliance.process.agent import AgentProcess, run_agent
from appliance.replicas.agent import ReplicaAgent


def run(child: Child) -> int:
    """The life of one replica process; its exit code."""
    return run_agent(child, _wire)


def _wire(process: AgentProcess) -> ReplicaAgent:
    broker = process.settings.broker
    PRODUCER_LIMITS.set(per_log=broker.producer_ids_per_partition_max, in_process=broker.producer_ids_max)
    return ReplicaAgent(process, process.controller_link())
