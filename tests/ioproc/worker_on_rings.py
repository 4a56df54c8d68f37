"""A worker without its loop, and the other ends of the rings on which it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.channels.child import Child
from appliance.channels.roles import Role, RoleKind
from appliance.channels.supervision import SupervisionSocket, socket_pair
from appliance.channels.wiring import Attachment, Wiring
from appliance.config import load_settings
from appliance.ioproc.worker import WorkerAgent
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import remove_directory
from appliance.process.agent import AgentProcess
from tests.support.private_directory import new_private_directory

WORKER = Role(RoleKind.IOPROC, 0, 0)


class WorkerOnRings:
    """Slot 0's worker, which looks at the rings of `peers` in their order.

    Args:
        options: settings beside the data directory and the one network process.
    """

    def __init__(
        self, data_dir: Path, peers: Sequence[Role], options: Mapping[str, str] | None = None
    ) -> None:
        settings = load_settings(
            None, {"data.dir": str(data_dir), "network.processes": "1", **(options or {})}
        )
        doorbells = {role: Doorbell.create_eventfd() for role in (*peers, WORKER)}
        lives = dict.fromkeys(peers, 1)
        self.wiring = Wiring(settings, "appliance-test", new_private_directory(), doorbells)
        self.wiring.create_standing_regions()
        for peer in peers:
            self.wiring.create_for(peer, 1, {})
        self.wiring.create_for(WORKER, 1, lives)
        self.askers = {peer: Attachment(self.wiring, peer, 1, {WORKER: 1}) for peer in peers}
        self.ends = socket_pair()
        child = Child(WORKER, 1, lives, self.wiring, SupervisionSocket(self.ends[1]))
        self.process = AgentProcess(child, warn=print)
        self.worker = WorkerAgent(self.process, self.process.controller_link())

    def close(self) -> None:
        self.worker._close()
        for end in self.ends:
            end.close()
        self.process.end()
        remove_directory(self.wiring.runtime_dir)
