"""The coordinator process: wires the agent to what the supervisor gave it. See agent.py for what it does.

It cannot fail to start unless shared memory is missing, which is then the end of this life. It is ready before it has
replayed anything: requests are answered with COORDINATOR_LOAD_IN_PROGRESS until then.
"""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.control.coordinator.agent import CoordinatorAgent
from appliance.process.agent import run_agent


def run(child: Child) -> int:
    """One life of the coordinator; its exit code."""
    return run_agent(child, CoordinatorAgent)
