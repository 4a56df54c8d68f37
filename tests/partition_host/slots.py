"""Slot 0 of two with its worker or its replica process, wired as by the supervisor; the test plays all the others."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from appliance.channels.child import Child
from appliance.channels.control_channel import Assign, AssignedPartition, Envelope
from appliance.channels.request_channel import produce_request
from appliance.channels.roles import Role, RoleKind, replica_of
from appliance.channels.supervision import SupervisionSocket, socket_pair
from appliance.channels.wiring import Attachment, Wiring
from appliance.clock import Clock
from appliance.config import load_settings
from appliance.ioproc.leader_host import LeaderHost
from appliance.ioproc.worker import WorkerAgent
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import remove_directory
from appliance.process.agent import AgentProcess
from appliance.replicas.agent import ReplicaAgent
from appliance.replicas.follower_host import FollowerHost
from tests.support.private_directory import new_private_directory

NETPROC, IOPROC, REPLICA = Role(RoleKind.NETPROC), Role(RoleKind.IOPROC, 0, 0), replica_of(0)
TOPIC_ID = UUID(int=7)
INCARNATION = 1
WAIT_S = 30


class Slot:
    """One process of slot 0, `role`, without its loop, and the end of a network process."""

    def __init__(self, data_dir: Path, role: Role, *, clock: Clock | None = None) -> None:
        settings = load_settings(None, {"data.dir": str(data_dir), "network.processes": "1", "slots": "2"})
        doorbells = {each: Doorbell.create_eventfd() for each in (NETPROC, role)}
        self.wiring = Wiring(settings, "appliance-test", new_private_directory(), doorbells)
        self.wiring.create_standing_regions()
        self.wiring.create_for(NETPROC, 1, {})
        self.wiring.create_for(role, 1, {NETPROC: 1})
        self.ends = socket_pair()
        peers = {NETPROC: 1} if role == IOPROC else {}
        child = Child(role, 1, peers, self.wiring, SupervisionSocket(self.ends[1]))
        self.process = AgentProcess(child, warn=print, clock=clock)
        self.clock = self.process.clock
        self.attachment = self.process.attachment
        controller = self.process.controller_link()
        self.agent: WorkerAgent | ReplicaAgent
        if role == IOPROC:
            self.asker = Attachment(self.wiring, NETPROC, 1, {IOPROC: 1})
            self.agent = WorkerAgent(self.process, controller)
        else:
            self.agent = ReplicaAgent(self.process, controller)

    @property
    def host(self) -> LeaderHost | FollowerHost:
        return self.agent.host

    @property
    def worker(self) -> WorkerAgent:
        assert isinstance(self.agent, WorkerAgent)
        return self.agent

    def hold(self, count: int = 1, *, configs: Mapping[str, str] | None = None) -> None:
        """Have the controller's first command lead, or follow, so many partitions of one topic."""
        leader = 0 if isinstance(self.agent, WorkerAgent) else 1
        isr = (leader,)
        partitions = tuple(
            AssignedPartition(
                "t", TOPIC_ID, row, row, INCARNATION, leader, 0, (0, 1), isr, dict(configs or {})
            )
            for row in range(count)
        )
        self.host.obey([Envelope(1, Assign(1, "c", True, partitions))])
        assert all(self.host.held_at(row) is not None for row in range(count))

    def produce(self, batch: bytes, *, acks: int, row: int = 0) -> None:
        """Place a request as the network process does."""
        pool, ring = self.asker.pool, self.asker.outbound[IOPROC]
        assert pool is not None
        pool.view[: len(batch)] = batch
        assert ring.put(*produce_request(9, 0, row, INCARNATION, 0, acks, 0, len(batch), 9, 30_000, 1))
        ring.publish()

    def answers(self) -> list[tuple[int, ...]]:
        """Serve rings until there is an answer; return what has come."""
        deadline_s = time.monotonic() + WAIT_S
        while not (found := self.asker.inbound[IOPROC].drain(16)):
            assert time.monotonic() < deadline_s, "there is no answer"
            self.worker.rings.serve()
        return found

    def pass_time(self) -> None:
        """Run the timers that are due, and what threads have left to do."""
        self.host.cycle.timers.run_due(self.clock.monotonic_ns())
        self.host.turn()

    def close(self) -> None:
        self.agent._close()
        for end in self.ends:
            end.close()
        self.process.context.destroy(linger=0)
        remove_directory(self.wiring.runtime_dir)
        for eventfd in self.wiring.doorbells.values():
            os.close(eventfd)
