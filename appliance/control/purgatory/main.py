"""The purgatory process: wires the agent to what the supervisor gave it. See agent.py for what it does.

It cannot fail to start unless shared memory is missing, which is then the end of this life.
"""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.control.purgatory.agent import PurgatoryAgent
from appliance.process.agent import run_agent


def run(child: Child) -> int:
    """One life of the purgatory; its exit code."""
    return run_agent(child, PurgatoryAgent)
