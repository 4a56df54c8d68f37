"""Which partitions this worker leads, by row; made to be what the controller says (`partition_host.copy_holder`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from appliance.channels.control_channel import AssignedPartition, LogAhead
from appliance.channels.partition_table import (
    SERVING_INCARNATION,
    SLOT_CLOSED_INCARNATION,
    SLOT_LOG_END,
    PartitionTable,
)
from appliance.clock import Clock
from appliance.cluster import TopicPartition
from appliance.errors import LogDirectoryOffline, StorageFault
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.later_epochs import log_ahead
from appliance.ioproc.partition import Partition
from appliance.ioproc.peer_copies import compare_with_peers
from appliance.log.file_names import partition_directory_name
from appliance.log.log_directories import LogDirectories
from appliance.log.others_directories import DirectoriesOf, first_base_offset
from appliance.log.partition_log import PartitionLog
from appliance.log.recovered import FOLDER
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.copy_holder import CopyHolder
from appliance.partition_host.listener import PartitionListener
from appliance.protocol.errors import ErrorCode

MIN_INSYNC_REPLICAS = "min.insync.replicas"

_logger = logging.getLogger(__name__)


class Partitions(CopyHolder[Partition]):
    """Led partitions: `by_row[row]` is None where this worker leads nothing.

    Args:
        commits: Holds answers back for partitions with `durability = "fsync"`.
        is_emptied: This slot's directories were empty when the instance began.

    `ahead`: what is not led because its logs have later epochs than the controller knows; the worker reports it.
    `lost`: what leads with fewer records than there had been, because every in-sync copy was damaged.
    """

    HELD = "served"
    OFFLINE = "offline"

    def __init__(
        self,
        directories: LogDirectories,
        table: PartitionTable,
        *,
        slot: int,
        log_defaults: Mapping[str, str],
        commits: GroupCommit,
        clock: Clock,
        publisher: StatePublisher,
        directories_of: DirectoriesOf,
        listener: PartitionListener[Partition],
        is_emptied: bool = False,
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
        self._is_emptied = is_emptied
        self._commits = commits
        self._clock = clock
        self.by_row: list[Partition | None] = [None] * len(table)
        self.ahead: dict[TopicPartition, LogAhead] = {}
        self.lost: set[TopicPartition] = set()

    def _take(self, assigned: AssignedPartition, *, is_new: bool) -> None:
        name = TopicPartition(assigned.topic, assigned.partition)
        if self.partial.get(name, assigned.leader_epoch) < assigned.leader_epoch:
            # Chosen again: the slot's replica may have made it whole, or somebody wants it as it is.
            self._forget_fault(name)
        if (known_fault := self._known_fault(assigned)) is not None:
            self.unopened.pop(name, None)
            self._publish_offline(assigned)
            raise LogDirectoryOffline(str(known_fault))
        known = self.by_name.get(name)
        if known is not None and (known.incarnation, known.row) == (assigned.incarnation, assigned.row):
            self._lead_on(known, assigned)
            return
        if known is not None:
            self._withdraw(known)
        configs = self._defaults | assigned.configs
        settings = self._settings.of(self._defaults, assigned.configs)
        before = self._table.opening(assigned.row, assigned.incarnation, self._slot)
        try:
            if not is_new:
                self._refuse_lost(assigned)
            log = self._directories.open_partition(
                name,
                assigned.topic_id,
                settings,
                is_new=is_new,
                was_there=before.had_copy,
                closed=before.closed,
                left=before.left,
            )
            if not before.had_copy:
                # What a row's former use has left there would be taken for what this copy has had.
                own = self._table.slot_at(assigned.row, self._slot)
                self._table.cells[own + SLOT_LOG_END] = log.log_end_offset
            self._table.opened(assigned.row, assigned.incarnation, self._slot, before, cut_to=log.cut_to)
            self._refuse_ahead(assigned, log, was_handed_over=before.closed is not None)
            self._refuse_partial(assigned, log, was_handed_over=before.closed is not None)
        except LogDirectoryOffline as fault:
            self._note_fault(name, assigned.incarnation, fault)
            self.unopened.pop(name, None)
            self._publish_offline(assigned)
            raise
        if log.latest_epoch != assigned.leader_epoch:
            if log.latest_epoch > assigned.leader_epoch:
                _logger.error(
                    "partition %s: slot %d leads in epoch %d, and its log has epoch %d, which no leader"
                    " can have had. The log is damaged, and consumers cannot look up the end of that epoch",
                    name,
                    self._slot,
                    assigned.leader_epoch,
                    log.latest_epoch,
                )
            log.assign_epoch(assigned.leader_epoch, log.log_end_offset)
        partition = Partition(
            assigned,
            log,
            table=self._table,
            slot=self._slot,
            min_insync_replicas=int(configs.get(MIN_INSYNC_REPLICAS, "1")),
            clock=self._clock,
            directory=self._directories.index_of(name),
        )
        partition.topic_partition = name
        if len(assigned.replicas) > 1:
            checkpoint = self._directories.high_watermark_checkpoint(name)
            partition.replicate(assigned, checkpoint=checkpoint, now_ms=self._now_ms())
        self.by_name[name] = partition
        self.by_row[assigned.row] = partition
        self._configs[name] = assigned.configs
        self.unopened.pop(name, None)
        self._commits.bind(partition)
        if is_new:
            partition.serve()
            self._publisher.take_new(partition)
        else:
            self._publisher.take(partition)
            partition.serve()

    def _refuse_lost(self, assigned: AssignedPartition) -> None:
        """An empty disk in the place of the one that was in sync must not lead: followers would cut their copies to it.

        Another replica may have records still, so somebody has to allow that it leads though it was not in sync.

        Raises:
            LogDirectoryOffline: this is one of those.
        """
        if not self._is_emptied or assigned.leader_epoch == 0 or len(assigned.replicas) == 1:
            return
        name = TopicPartition(assigned.topic, assigned.partition)
        if not self._directories.has(name):
            raise LogDirectoryOffline(f"{name} was in sync on a disk that an empty one has replaced")

    def _refuse_partial(
        self, assigned: AssignedPartition, log: PartitionLog, *, was_handed_over: bool
    ) -> None:
        """A copy of which files have gone must not lead either, for the same reason, unless it is the only one in sync.

        Raises:
            LogDirectoryOffline: this is one of those.
        """
        if len(assigned.replicas) == 1:
            return
        name = TopicPartition(assigned.topic, assigned.partition)
        lacks = self._table.lacks(
            assigned.row,
            assigned.incarnation,
            self._slot,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            is_alone=self._is_alone(assigned),
        ) or self._lacks_begin(assigned, log)
        reason = (
            f"files of {name} have gone: {lacks}"
            if lacks
            else self._lacks_end(assigned, log, was_handed_over=was_handed_over)
        )
        if reason:
            self._directories.give_up(name)
            self.partial[name] = assigned.leader_epoch
            raise LogDirectoryOffline(reason)

    def _refuse_ahead(self, assigned: AssignedPartition, log: PartitionLog, *, was_handed_over: bool) -> None:
        """Nobody leads in an epoch that the logs have passed: two leaders would write under one epoch (`later_epochs`).

        Raises:
            StorageFault: this is one of those, and `ahead` has it.
        """
        ahead = log_ahead(
            assigned,
            log,
            slot=self._slot,
            slots=self._table.slots,
            directories_of=self._directories_of,
            was_led=self._table.was_led(assigned.row, assigned.incarnation),
            is_clean=not (was_handed_over or log.is_recovered),
        )
        if ahead is None:
            return
        name = TopicPartition(assigned.topic, assigned.partition)
        self.ahead[name] = ahead
        self._hand_over(name, assigned.row, assigned.incarnation)
        own = self._table.slot_at(assigned.row, self._slot)
        self._table.cells[own + SLOT_CLOSED_INCARNATION] = assigned.incarnation
        raise StorageFault(
            f"slot {self._slot} does not lead in epoch {assigned.leader_epoch}, because the logs have epoch"
            f" {ahead.log_epoch}; it asks the controller for a later one"
        )

    def _is_alone(self, assigned: AssignedPartition) -> bool:
        return assigned.isr == (self._slot,)

    def _lacks_begin(self, assigned: AssignedPartition, log: PartitionLog) -> str:
        """After a start of everything no word says where a copy began; what others in sync have, on this host, may."""
        if self._table.was_led(assigned.row, assigned.incarnation) or assigned.leader_epoch == 0:
            return ""
        is_empty = not log.log_end_offset
        if not (is_empty or log.lacks_begin):
            return ""
        directory = partition_directory_name(TopicPartition(assigned.topic, assigned.partition))
        for slot in assigned.isr:
            for path in self._directories_of(slot) if slot != self._slot else ():
                begin = first_base_offset(path / directory)
                if begin is not None and (is_empty or begin < log.log_start_offset):
                    what = "is empty" if is_empty else f"begins at {log.log_start_offset}"
                    return f"it {what}, and the one of slot {slot}, in sync as well, begins at {begin}"
        return ""

    def _lacks_end(self, assigned: AssignedPartition, log: PartitionLog, *, was_handed_over: bool) -> str:
        """Say why a copy must not lead because another in-sync copy has a longer valid log; empty: it may lead.

        Compared is where the end may be that of a damaged log: after anything but a clean stop, after a recovery that
        cut complete batches, and until all in-sync copies have what the first leader after a restart had. A stop counts
        as clean only if a high watermark is written down that bears it out. At any other time the high watermark in
        shared memory says what counts (`PartitionTable.lacks`).
        """
        if assigned.leader_epoch == 0:
            return ""
        name = TopicPartition(assigned.topic, assigned.partition)
        was_led = self._table.was_led(assigned.row, assigned.incarnation)
        is_known = self._table.is_watermark_known(assigned.row, assigned.incarnation)
        committed = 0 if was_led else self._directories.high_watermark_checkpoint(name)
        is_short = log.log_end_offset < committed
        if is_known and log.log_end_offset >= log.cut_to:
            return ""
        is_borne_out = self._directories.has_high_watermark_checkpoint(name) and not is_short
        if is_borne_out and not (was_led or was_handed_over or log.is_recovered):
            return ""  # a clean stop
        peers = compare_with_peers(assigned, log, slot=self._slot, directories_of=self._directories_of)
        own = peers.own
        if peers.longest is not None:
            slot, end = peers.longest
            return (
                f"slot {self._slot} does not lead: its log ends at offset {own.offset} (epoch {own.epoch}), the in-sync"
                f" copy of slot {slot} at {end.offset} (epoch {end.epoch}); it follows and copies what it lacks"
            )
        if is_short and peers.unread:
            return (
                f"slot {self._slot} does not lead: its log ends at offset {own.offset}, all was committed to"
                f" {committed}, and the in-sync copies of slots {list(peers.unread)} cannot be read"
            )
        cuts = {
            each: self._table.cut_to(assigned.row, assigned.incarnation, each) for each in assigned.replicas
        }
        lost_to = max(committed, cuts.get(self._slot, 0))
        if own.offset < lost_to:
            self._say_lost(name, own.offset, lost_to)
        elif own.offset < max(cuts.values()):
            # Mostly what the last leader had appended and its followers had not copied yet.
            _logger.warning(
                "partition %s: slot %d leads with a log that ends at offset %d; a damaged replica had records up to"
                " %d. Those were not acknowledged with acks=all unless this replica was damaged as well",
                name,
                self._slot,
                own.offset,
                max(cuts.values()),
            )
        return ""

    def _say_lost(self, name: TopicPartition, end: int, lost_to: int) -> None:
        self.lost.add(name)
        _logger.error(
            "partition %s: records are lost: slot %d leads with the longest valid log of all in-sync replicas, which"
            " ends at offset %d; records up to %d existed. Truncated bytes are in the directory %s of each replica",
            name,
            self._slot,
            end,
            lost_to,
            FOLDER,
        )

    def _lead_on(self, partition: Partition, assigned: AssignedPartition) -> None:
        """A partition that is served already takes what is new; its row is served all the while."""
        log = partition.log
        if log.latest_epoch != assigned.leader_epoch:
            log.assign_epoch(assigned.leader_epoch, log.log_end_offset)
        partition.leader_epoch = assigned.leader_epoch
        replication = partition.replication
        if replication is not None:
            replication.take(assigned, log_end=log.log_end_offset, now_ms=self._now_ms())
            partition.isr = replication.isr
        elif len(assigned.replicas) > 1:
            # It has got its first follower.
            checkpoint = partition.high_watermark
            partition.replicate(assigned, checkpoint=checkpoint, now_ms=self._now_ms())
            partition.isr = assigned.isr
        else:
            partition.isr = assigned.isr
        self._apply_configs(partition, assigned.configs)
        partition.serve_epoch()
        if partition.replication is not None:
            self._listener.high_watermark_may_move(partition)
        self.unopened.pop(partition.topic_partition, None)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _apply_configs(self, partition: Partition, topic_configs: Mapping[str, str]) -> None:
        """From the next request on the partition goes by these settings of its topic, and the defaults."""
        configs = self._defaults | dict(topic_configs)
        self._configs[partition.topic_partition] = topic_configs
        partition.log.update_settings(self._settings.of(self._defaults, topic_configs))
        self._commits.bind(partition)
        partition.min_insync_replicas = int(configs.get(MIN_INSYNC_REPLICAS, "1"))
        if partition.replication is None:
            partition.publish()
        # Else whoever can tell those that wait for the watermark publishes it (`Followed`).

    def _apply_defaults(self, name: TopicPartition) -> None:
        self._apply_configs(self.by_name[name], self._configs[name])

    def give_away(self, partition: Partition, offset: int, fault: StorageFault) -> None:
        """Another copy has to lead, because this one is damaged from `offset` on: whoever opens it next cuts it there.

        Raises:
            StorageFault: it could not be written down, and nothing has changed.
        """
        name = partition.topic_partition
        self._directories.distrust(name, offset)
        self.take_offline(partition, fault)
        self.partial[name] = partition.leader_epoch

    def _publish_offline(self, assigned: AssignedPartition) -> None:
        at = self._table.at(assigned.row) + SERVING_INCARNATION
        self._table.cells[at] = -assigned.incarnation

    def _let_go(self, name: TopicPartition, *, is_offline: bool = False) -> Partition | None:
        self.unopened.pop(name, None)
        known = self.by_name.get(name)
        if known is not None:
            self._withdraw(known, offline=is_offline)
        return known

    def _withdraw(self, partition: Partition, *, offline: bool = False) -> None:
        self._commits.forget(partition)
        self._listener.withdrawn(
            partition, int(ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        )
        self._publisher.drop(partition)
        partition.withdraw(offline=offline)
        del self.by_name[partition.topic_partition]
        self._configs.pop(partition.topic_partition, None)
        if self.by_row[partition.row] is partition:
            self.by_row[partition.row] = None
