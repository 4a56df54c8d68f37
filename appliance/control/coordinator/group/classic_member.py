"""A member of a classic group: what it can do, how long it may be silent, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from appliance.control.coordinator.group.held_bytes import weigh_member
from appliance.control.coordinator.runtime.effects import Client
from appliance.delayed.timing_wheel import Task
from appliance.protocol.apis.join_group import JoinGroupProtocol

OnTime: TypeAlias = Callable[[], None]
"""What a timer does when it goes off."""


class Waiting(msgspec.Struct, frozen=True):
    """A request that is answered later."""

    reply: object
    client: Client


class ClassicMember(msgspec.Struct):
    """`protocols` in the order of its preference. `is_new` until its first rebalance is over.

    A new member knows no member id yet and cannot send heartbeats: it may expire while it waits to join.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    joining: Waiting | None = None
    syncing: Waiting | None = None
    session: Task[OnTime] | None = None
    counted_bytes: int = 0
    """What it counts for in its group (`held_bytes`)."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def may_be_silent(self) -> bool:
        """Whether it waits for us, so that no heartbeat can be asked of it."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """What it says about itself under that protocol. Raises KeyError when it does not know it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise KeyError(protocol_name)

    def weigh(self) -> int:
        """How many bytes it takes."""
        return weigh_member(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            protocols=self.protocols,
            assignment=self.assignment,
        )

    def vote(self, candidates: set[str]) -> str:
        """The first of its protocols that is a candidate; every member knows each of the candidates."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def protocol_names(self) -> set[str]:
        return {protocol.name for protocol in self.protocols}
