"""Which partitions this slot follows, made to be what the controller says.

`partition_host.copy_holder` carries commands out. A log is opened here only after the slot's worker has closed it, and
is closed here before the answer that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.channels.control_channel import Assign, AssignedPartition
from appliance.channels.partition_table import NOT_FOLLOWING, SLOT_FOLLOWED_EPOCH, PartitionTable
from appliance.cluster import TopicPartition
from appliance.errors import LogDirectoryOffline
from appliance.log.log_directories import LogDirectories
from appliance.log.others_directories import DirectoriesOf
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.copy_holder import CopyHolder
from appliance.partition_host.listener import PartitionListener
from appliance.replicas.follower import Follower
from appliance.replicas.throttle import Throttled, throttled


class Followers(CopyHolder[Follower]):
    """By name and by row. `workers`: how many each slot has."""

    HELD = "followed"
    OFFLINE = "no longer followed"

    def __init__(
        self,
        directories: LogDirectories,
        table: PartitionTable,
        *,
        slot: int,
        log_defaults: Mapping[str, str],
        directories_of: DirectoriesOf,
        workers: int = 1,
        publisher: StatePublisher,
        listener: PartitionListener[Follower],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(
            directories,
            table,
            slot=slot,
            log_defaults=log_defaults,
            directories_of=directories_of,
            publisher=publisher,
            listener=listener,
            warn=warn,
        )
        self._workers = workers
        self.by_row: dict[int, Follower] = {}

    def _take(self, assigned: AssignedPartition, *, is_new: bool) -> None:
        name = TopicPartition(assigned.topic, assigned.partition)
        if (known_fault := self._known_fault(assigned)) is not None:
            self.unopened.pop(name, None)
            raise LogDirectoryOffline(str(known_fault))
        known = self.by_name.get(name)
        if known is not None and (known.incarnation, known.row) != (assigned.incarnation, assigned.row):
            self._release(name)
            known = None
        self._configs[name] = assigned.configs
        if known is not None:
            known.follow(assigned.leader, assigned.leader_epoch)
            self._apply_defaults(name)
            self.unopened.pop(name, None)
            return
        before = self._table.opening(assigned.row, assigned.incarnation, self._slot)
        try:
            log = self._directories.open_partition(
                name,
                assigned.topic_id,
                self._settings.of(self._defaults, assigned.configs),
                is_new=is_new,
                # A copy that is in sync may lead; another one begins anew.
                was_there=before.had_copy and self._slot in assigned.isr,
                closed=before.closed,
                left=before.left,
            )
        except LogDirectoryOffline as fault:
            self._note_fault(name, assigned.incarnation, fault)
            self.unopened.pop(name, None)
            # What a life before has said of its bytes holds no more.
            own = self._table.slot_at(assigned.row, self._slot)
            self._table.cells[own + SLOT_FOLLOWED_EPOCH] = NOT_FOLLOWING
            raise
        self._table.opened(assigned.row, assigned.incarnation, self._slot, before, cut_to=log.cut_to)
        follower = Follower(
            assigned,
            log,
            table=self._table,
            slot=self._slot,
            directories_of=self._directories_of,
            directory=self._directories.index_of(name),
            workers=self._workers,
        )
        follower.throttled = self._throttled(follower)
        self.by_name[name] = self.by_row[assigned.row] = follower
        if is_new:
            self._publisher.take_new(follower)
        else:
            self._publisher.take(follower)
        self.unopened.pop(name, None)

    def _apply_defaults(self, name: TopicPartition) -> None:
        follower = self.by_name[name]
        follower.log.update_settings(self._settings.of(self._defaults, self._configs[name]))
        follower.settings_changed()
        follower.throttled = self._throttled(follower)

    def _throttled(self, follower: Follower) -> Throttled:
        name = follower.topic_partition
        return throttled(self._configs[name], name.partition, slot=self._slot, leader=follower.leader)

    def _let_go(self, name: TopicPartition, *, is_offline: bool = False) -> Follower | None:
        self.unopened.pop(name, None)
        self._configs.pop(name, None)
        follower = self.by_name.pop(name, None)
        if follower is not None:
            self._publisher.drop(follower)
            follower.let_go()
            if self.by_row.get(follower.row) is follower:
                del self.by_row[follower.row]
        return follower

    def will_flush(self, command: Assign) -> bool:
        """Whether any of the copies that `command` names is to be forced to the disk before it counts."""
        return any(self._settings.of(self._defaults, each.configs).is_fsync for each in command.partitions)
