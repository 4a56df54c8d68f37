"""A services process: wires the agent to what the supervisor gave it. See agent.py for what it does.

It runs only if `services.processes` is above 0. It cannot fail to start unless shared memory is missing.
"""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.process.agent import run_agent
from appliance.services.agent import ServicesAgent


def run(child: Child) -> int:
    """One life of a services process; its exit code."""
    return run_agent(child, ServicesAgent)
