"""Tells the replicas of other slots that led partitions have more, and hears how far they have come.

A partition that nobody follows is never noted here. What a full ring keeps back is told in the next turn; a replica
that is down is told nothing: it looks at everything when it is up.
"""

from __future__ import annotations

from appliance.channels.replica_channel import INCARNATION, ROW, tell_rows
from appliance.channels.roles import Role, RoleKind, replica_of
from appliance.channels.wiring import Attachment
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import DutyCycle
from appliance.ipc.ring import RingReader


class FollowerBells:
    """One worker's lines to the replicas."""

    __slots__ = ("_attachment", "_cycle", "_moved", "readers")

    def __init__(self, attachment: Attachment, cycle: DutyCycle) -> None:
        self._attachment = attachment
        self._cycle = cycle
        self._moved: dict[Role, dict[int, int]] = {}
        self.readers: dict[Role, RingReader] = {}
        for role in list(attachment.inbound):
            self.peer_up(role)

    def peer_up(self, role: Role) -> bool:
        """Takes a replica's ring out of those that are drained for every request; whether it is one."""
        if role.kind is not RoleKind.REPLICA:
            return False
        reader = self._attachment.inbound.pop(role, None)
        if reader is not None:
            self.readers[role] = reader
        return True

    def peer_down(self, role: Role) -> None:
        """Before the attachment lets go of the ring."""
        reader = self.readers.pop(role, None)
        self._moved.pop(role, None)
        if reader is not None:
            self._cycle.remove_inbox(reader)

    def moved(self, partition: Partition) -> None:
        """The partition is served anew, or has more."""
        assert partition.replication is not None
        for slot in partition.replication.followers:
            role = replica_of(slot)
            rows = self._moved.get(role)
            if rows is None:
                rows = self._moved[role] = {}
            rows[partition.row] = partition.incarnation

    def heard(self) -> set[tuple[int, int]]:
        """(row, incarnation) of which some replica has said something."""
        said: set[tuple[int, int]] = set()
        for reader in self.readers.values():
            if not reader.is_empty():
                said.update((message[ROW], message[INCARNATION]) for message in reader.drain())
        return said

    def tell(self) -> None:
        """After publishing."""
        tell_rows(self._moved, self._attachment.outbound, self._attachment.bells)

    @property
    def owed(self) -> bool:
        """Whether a full ring kept something back."""
        return bool(self._moved)
