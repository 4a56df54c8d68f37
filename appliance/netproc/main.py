"""The network process: wires the agent to the supervisor, the controller and the acceptor. See processor.py."""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.netproc.fan_out import FanOut
from appliance.netproc.processor import NetworkAgent
from appliance.process.agent import AgentProcess, run_agent
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.messages import prepare

# Compiled before the first client asks; the rest when first used.
PREPARED = ((int(ApiKey.API_VERSIONS), 3), (int(ApiKey.METADATA), 12))


def before_fork() -> None:
    """What the first client of each network process asks."""
    prepare(*PREPARED)


def run(child: Child) -> int:
    """The life of one network process; its exit code."""
    return run_agent(child, _wire)


def _wire(process: AgentProcess) -> NetworkAgent:
    fan_out = FanOut(
        process.wiring, process.role, process.generation, context=process.context, clock=process.clock
    )
    return NetworkAgent(process, process.controller_link(), fan_out=fan_out)
