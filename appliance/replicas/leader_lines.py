"""The lines to the workers that lead what this slot follows: a row comes when a log has grown, and goes back when it
was looked at.

What a ring has no room for is told in the next turn. Whoever is down looks for itself when it is up again.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.replica_channel import INCARNATION, ROW, tell_rows
from appliance.channels.roles import Role
from appliance.channels.wiring import Attachment
from appliance.ipc.process_table import REQUESTS
from appliance.replicas.follower import Follower

MESSAGES_AT_ONCE: Final = 256


class LeaderLines:
    """All of them, of one replica process. `owed`: rows by incarnation that a leader is yet to hear of."""

    __slots__ = ("_attachment", "owed")

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self.owed: dict[Role, dict[int, int]] = {}

    def hear(self) -> list[tuple[Role, int, int]]:
        """What workers say that they have appended to: (worker, row, incarnation)."""
        heard = []
        for peer, reader in self._attachment.inbound.items():
            for message in reader.drain(MESSAGES_AT_ONCE):
                heard.append((peer, message[ROW], message[INCARNATION]))
        self._attachment.row.cells[REQUESTS] += len(heard)
        return heard

    def owe(self, follower: Follower) -> None:
        """Its leader is told, in this turn or when its ring has room."""
        if follower.worker is not None:
            self.owe_to(follower.worker, follower)

    def owe_to(self, peer: Role, follower: Follower) -> None:
        """As `owe`, to a worker that has asked."""
        self.owed.setdefault(peer, {})[follower.row] = follower.incarnation

    def tell(self) -> None:
        """Tells what is owed, as far as there is room."""
        tell_rows(self.owed, self._attachment.outbound, self._attachment.bells)

    def peer_down(self, peer: Role) -> None:
        """Its ring goes with it."""
        self.owed.pop(peer, None)
