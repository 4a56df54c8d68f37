"""The console process: wires the agent to what the supervisor gave it. See agent.py for what it does."""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.process.agent import run_agent


def run(child: Child) -> int:
    """One life of the console process; its exit code."""
    # Imported here, and not before the fork: only this process needs templates and an HTTP server.
    from appliance.console.agent import ConsoleAgent

    return run_agent(child, ConsoleAgent)
