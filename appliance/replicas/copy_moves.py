"""A follower's half of moves between log directories: each copy is moved by who holds it, led or not, as in Kafka.

The steps are the worker's (`log/log_moves.py`). The copy in the other directory is made from the slot's own log, which
goes on following meanwhile: reading the leader's a second time would cost it, and could bring other bytes after a cut.
How far it has come stands in the partition table, for DescribeLogDirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from appliance.channels.control_channel import CopyMove
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, StorageFault
from appliance.log.flusher import Flusher
from appliance.log.log_directories import LogDirectories
from appliance.partition_host.log_moves import LogMoves
from appliance.protocol.errors import ErrorCode, code_for
from appliance.replicas.durable_copies import DurableCopies
from appliance.replicas.follower import Follower
from appliance.replicas.followers import Followers


class CopyMoves(LogMoves[Follower]):
    """The moves of one replica process; arguments as of `LogMoves`."""

    __slots__ = ("_offline",)

    def __init__(
        self,
        followers: Followers,
        directories: LogDirectories,
        durable: DurableCopies,
        *,
        thread: Flusher,
        removed: Callable[[], None],
        suspect: Callable[[int], None],
        fail: Callable[[Follower, StorageFault], None],
        moved: Callable[[], None],
    ) -> None:
        super().__init__(
            followers.by_name.get,
            directories,
            durable,
            thread=thread,
            counted=lambda _: None,
            removed=removed,
            suspect=suspect,
            fail=fail,
            moved=moved,
            went_on=self._show,
        )
        self._offline = followers.offline

    def _show(self, follower: Follower) -> None:
        follower.show_future(self.shown(follower))

    def alter_all(self, moves: Iterable[CopyMove]) -> tuple[int, ...]:
        """Begins each; a Kafka error code for each: REPLICA_NOT_AVAILABLE where the copy is not followed here."""
        return tuple(self._alter(each) for each in moves)

    def _alter(self, move: CopyMove) -> int:
        name = TopicPartition(move.topic, move.partition)
        if name in self._offline:
            return int(ErrorCode.KAFKA_STORAGE_ERROR)
        follower = self._held(name)
        if follower is None or follower.incarnation != move.incarnation:
            return int(ErrorCode.REPLICA_NOT_AVAILABLE)
        try:
            self.alter(follower, move.directory)
        except ApplianceError as fault:
            return int(code_for(fault))
        return 0
