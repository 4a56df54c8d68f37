"""The network process: wires the agent to the supervisor, the controller and the acceptor. See processor.py."""

from __future__ import annotations

from appliance.channels.child import Child
from appliance.netproc.fan_out import FanOut
from appliance.netproc.processor import NetworkAgent
from appliance.process.agent import AgentProcess, run_agent
from appliance.requests.local_requests import prepare_codecs


def before_fork() -> None:
    """Compile the codecs of what the first client of each network process asks."""
    prepare_codecs()


def run(child: Child) -> int:
    """The life of one network process; its exit code."""
    return run_agent(child, _wire)


def _wire(process: AgentProcess) -> NetworkAgent:
    fan_out = FanOut(
        process.wiring, process.role, process.generation, context=process.context, clock=process.clock
    )
    agent = NetworkAgent(process, process.controller_link(), fan_out=fan_out)
    if any(listener.is_tls for listener in process.settings.listeners):
        agent.arrivals.add_handshakes()
    if any(listener.is_sasl for listener in process.settings.listeners):
        agent.arrivals.add_authentications()
    if process.settings.zeromq.listeners:
        # Imported where it is used: without a listener for ZeroMQ clients the process does not load it.
        from appliance.gateway.gateway import Gateway

        agent.add_transport(Gateway)
    return agent
