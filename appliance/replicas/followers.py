"""Which partitions this slot follows, made to be what the controller says.

`partition_host.copy_holder` carries commands out. A log is opened here only after the slot's worker has closed it, and
is closed here before the answer that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

from appliance.channels.control_channel import Assign, AssignedPartition
from appliance.channels.partition_table import NOT_FOLLOWING, SLOT_FOLLOWED_EPOCH, PartitionTable
from appliance.cluster import TopicPartition
from appliance.errors import LogDirectoryOffline, StorageFault
from appliance.log.config import LastSettings
from appliance.log.log_directories import LogDirectories
from appliance.log.others_directories import DirectoriesOf
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.copy_holder import CopyHolder
from appliance.replicas.follower import Follower
from appliance.replicas.throttle import Throttled, throttled


class Followers(CopyHolder[Follower]):
    """By name and by row. One slot, all its log directories.

    `breathe` is called before each log of a command: followers of other partitions are waited for meanwhile.
    Once `is_stopping`, no further one is opened. `workers`: how many each slot has.
    """

    __slots__ = (
        "_breathe",
        "_configs",
        "_directories",
        "_directories_of",
        "_is_stopping",
        "_publisher",
        "_settings",
        "_slot",
        "_table",
        "_workers",
        "by_row",
    )

    HELD = "followed"

    def __init__(
        self,
        directories: LogDirectories,
        table: PartitionTable,
        *,
        slot: int,
        log_defaults: Mapping[str, str],
        directories_of: DirectoriesOf,
        workers: int = 1,
        breathe: Callable[[], object],
        is_stopping: Callable[[], bool],
        publisher: StatePublisher,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(log_defaults=log_defaults, warn=warn)
        self._breathe = breathe
        self._is_stopping = is_stopping
        self._publisher = publisher
        self._directories = directories
        self._table = table
        self._slot = slot
        self._directories_of = directories_of
        self._workers = workers
        self._configs: dict[TopicPartition, Mapping[str, str]] = {}
        self._settings = LastSettings()
        self.by_row: dict[int, Follower] = {}

    def _goes_on(self, count: int) -> bool:
        self._breathe()
        return not self._is_stopping()

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

    def _forget(self, name: TopicPartition) -> Follower | None:
        self.unopened.pop(name, None)
        self._configs.pop(name, None)
        follower = self.by_name.pop(name, None)
        if follower is not None:
            self._publisher.drop(follower)
            follower.let_go()
            if self.by_row.get(follower.row) is follower:
                del self.by_row[follower.row]
        return follower

    def _release(self, name: TopicPartition) -> None:
        follower = self._forget(name)
        if follower is not None:
            leave = partial(self._table.leave, follower.row, follower.incarnation, self._slot)
            self._directories.hand_over(name, leave)
            follower.closed()

    def _remove(self, name: TopicPartition, topic_id: UUID) -> None:
        self._forget_fault(name)
        self._forget(name)
        self._directories.delete_partition(name, topic_id)

    def will_flush(self, command: Assign) -> bool:
        """Whether any of the copies that `command` names is to be forced to the disk before it counts."""
        return any(self._settings.of(self._defaults, each.configs).is_fsync for each in command.partitions)

    def touched_by(self, command: Assign) -> list[Follower]:
        """Those that are followed and that `command` has opened, or given other settings."""
        if command.log_defaults is not None:
            return list(self.by_name.values())
        found = (self.by_row.get(assigned.row) for assigned in command.partitions)
        return [follower for follower in found if follower is not None]

    def is_followed(self, follower: Follower) -> bool:
        """Whether it is one of these now."""
        return self.by_row.get(follower.row) is follower

    def take_offline(self, follower: Follower, fault: StorageFault) -> None:
        """What the disk holds of its log is not known: it is followed no more in this life of the process.

        Reading it again would tell what the page cache holds. The next life recovers it.
        """
        name = follower.topic_partition
        self._note_fault(name, follower.incarnation, fault)
        self._forget(name)
        self._directories.give_up(name)

    def directory_failed(self, index: int) -> list[TopicPartition]:
        """A log directory has failed and is touched no more: what it held is followed no more in this life."""
        gone = [name for name in self.by_name if self._directories.index_of(name) == index]
        for name in gone:
            self._forget(name)
        return gone

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """For the checkpoint."""
        return {name: follower.high_watermark for name, follower in self.by_name.items()}
