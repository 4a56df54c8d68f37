"""The network process: wires the agent to the supervisor, the controller and the acceptor. See processor.py."""

from __future__ import annotations

import zmq

from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.controller_link import ControllerLink
from appliance.ipc.agent import freeze_garbage
from appliance.netproc.fan_out import FanOut
from appliance.netproc.processor import NetworkAgent
from appliance.process.agent import AgentProcess
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.messages import prepare

# Compiled before the first client asks; the rest when first used.
PREPARED = ((int(ApiKey.API_VERSIONS), 3), (int(ApiKey.METADATA), 12))


def before_fork() -> None:
    """What the first client of each network process asks."""
    prepare(*PREPARED)


def run(child: Child) -> int:
    """The life of one network process; its exit code."""
    process = AgentProcess(child)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    controller = ControllerLink(child.wiring, child.role, child.generation, context=context)
    fan_out = FanOut(child.wiring, child.role, child.generation, context=context, clock=process.clock)
    agent = NetworkAgent(process, controller, fan_out=fan_out)
    freeze_garbage()
    agent.run()
    context.term()
    return EXIT_CLEAN
