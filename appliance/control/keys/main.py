"""The key process: wires the agent to what the supervisor gave it. See agent.py for what it does.

It runs only if a listener has the mechanism OAUTHBEARER. It cannot fail to start unless shared memory is missing.
"""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.control.keys.agent import KeyAgent
from appliance.process.agent import run_agent


def run(child: Child) -> int:
    """One life of the key process; its exit code."""
    return run_agent(child, KeyAgent)
