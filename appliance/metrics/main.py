"""The metrics process: wires the agent to what the supervisor gave it. See agent.py for what it does."""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.metrics.agent import MetricsAgent
from appliance.process.agent import run_agent


def run(child: Child) -> int:
    """One life of the metrics process; its exit code."""
    return run_agent(child, MetricsAgent)
