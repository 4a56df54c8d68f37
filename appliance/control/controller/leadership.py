"""Leaders, in-sync replicas and placement of the partitions there are: what changes them, and how a change is made.

    a half comes or goes, a leader proposes, a client or an operator asks
      → partition_changes: what each partition should be      (pure)
      → store: the states, and the topic's placement           one multi with the fence for a batch
      → books, rows of the partition table
      → copies: who is to let go, who is to take               (pure; the controller sends its orders)
      → image, once the new leader has answered that it leads  so the image names no leader whose copy is not free
      → whoever asked

The store is written first, so a controller that dies at any later step is followed by one that finds the change
decided, and asks every process anew what it holds. What the store could not take (a full disk) has not happened;
what the states of the slots asked for is looked at again after `RETRY_MS`, a client is told KAFKA_STORAGE_ERROR.

A review looks at every partition and costs 1 to 2 µs of each. It happens when a half comes, goes, or does not come
back, never by a clock alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice

from msgspec.structs import replace

from appliance.channels.control_channel import (
    AlteredPartition,
    AlteredPartitions,
    AlterPartitions,
    LogAhead,
    LogsAhead,
    WantedIsr,
)
from appliance.channels.roles import Role, RoleKind
from appliance.cluster import NO_LEADER, PartitionImage, TopicImage, TopicPartition
from appliance.control.controller.alarms import Alarms
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.copies import Copies
from appliance.control.controller.partition_changes import raised, reviewed, with_isr, without_storage
from appliance.control.controller.slot_states import (
    GRACE_MS,
    START_GRACE_MS,
    HalfState,
    PartitionSlots,
    SlotStates,
)
from appliance.control.controller.takeover import STATES_AT_ONCE, UNCLEAN_ELECTION, Fence
from appliance.control.controller.topic_store import new_placement, new_states
from appliance.control.store.metadata_store import MetadataStore, Operation
from appliance.errors import RejectedRequest, StorageFault
from appliance.protocol.errors import ErrorCode, code_for

RETRY_MS = 1_000
MIN_INSYNC = "min.insync.replicas"

_logger = logging.getLogger(__name__)

NAMED_MAX = 3

Changes = Mapping[str, Mapping[int, PartitionImage]]
"""Topic → partition → what it is from now on."""


class Leadership:
    """Single-threaded; belongs to the controller, which sends what `copies` orders and publishes what is dirty.

    Args:
        changed_slots: called when another set of slots is live.
        topic_defaults: what the brokers make of the topic settings.
    """

    __slots__ = (
        "_alarms",
        "_changed_slots",
        "_fence",
        "_left",
        "_news",
        "_partial",
        "_retrying",
        "_state",
        "_store",
        "_topic_defaults",
        "_unseen",
        "copies",
        "failed",
        "isr_expansions",
        "isr_shrinks",
        "slots",
        "unclean_elections",
    )

    def __init__(
        self,
        state: ClusterState,
        store: MetadataStore,
        *,
        fence: Fence,
        slots: SlotStates,
        copies: Copies,
        alarms: Alarms,
        changed_slots: Callable[[], None],
        topic_defaults: Callable[[], Mapping[str, str]],
    ) -> None:
        self._state = state
        self._store = store
        self._fence = fence
        self._alarms = alarms
        self._changed_slots = changed_slots
        self._topic_defaults = topic_defaults
        self._retrying = False
        self._news = True
        self._left: set[tuple[str, int, int]] = set()
        self._unseen: dict[tuple[str, int], None] = {}
        self.slots = slots
        self.copies = copies
        self.isr_shrinks = 0
        self.isr_expansions = 0
        self.unclean_elections = 0
        # Topic, partition and slot of copies whose storage failed in this life of who has them.
        self.failed: set[tuple[str, int, int]] = set()
        self._partial: set[tuple[str, int, int]] = set()
        for topic in state.topics.values():
            seen = state.visible.get(topic.name)
            for before, now in zip(seen.partitions if seen else (), topic.partitions, strict=False):
                if before != now:
                    self._unseen[topic.name, now.partition] = None
            for each in topic.partitions:
                for slot in each.leaving:
                    copies.leave((topic.name, topic.topic_id, each.partition), slot)
        for half in slots.waited_for():
            self._grant_grace(half)

    # The halves of the slots

    def came(self, half: Role) -> None:
        """A process has said hello."""
        if self.slots.up(half):
            # What another can lead goes there, before this life of it is trusted again.
            self._look_at_slots()
        self.failed = {each for each in self.failed if each[2] != half.slot or self._stands(*each, half)}

    def _stands(self, name: str, number: int, slot: int, came: Role) -> bool:
        """Whether a failure of a slot's copy is one that a new life of `came` knows nothing of: the replica process of
        what the slot leads (it may say hello after a worker failed), a worker of what another one owns."""
        topic = self._state.topics.get(name)
        if topic is None or number >= len(topic.partitions):
            return False
        if came.kind is RoleKind.REPLICA:
            return topic.partitions[number].leader == slot
        return came is not self.slots.owner(slot, topic.topic_id, number)

    def lost(self, half: Role, *, held: bool = False) -> None:
        """A process has died. One that is `held` runs no more, and has its copies open still: they are not given to the
        slot's other half; that other slots lead it does not keep them from."""
        if held:
            self.slots.held(half)
            self.copies.gone(half)
        else:
            self.slots.down(half)
            self.copies.lost(half)
            self._grant_grace(half)
        self._look_at_slots()

    def stop(self, slots: Iterable[int]) -> None:
        """From now on these, and no others, are stopped by their operator."""
        stopped = frozenset(slots)
        if stopped == self.slots.stopped:
            return
        changed = stopped ^ self.slots.stopped
        self.slots.stopped = stopped
        for topic in self._state.topics.values():
            for each in topic.partitions:
                if changed.intersection(each.replicas):
                    self.copies.touch(topic.name, each.partition)
        self._look_at_slots()

    def storage_failed(
        self,
        slot: int,
        places: Iterable[tuple[str, int]],
        *,
        lasting: bool = True,
        partial: Collection[tuple[str, int]] = (),
    ) -> None:
        """The copies of these (topic, partition) on `slot` cannot be served: in this life of its process, or now; those
        that are `partial` until they are in sync again."""
        changes: dict[str, dict[int, PartitionImage]] = {}
        defaults = self._topic_defaults()
        for name, number in places:
            topic = self._state.topics.get(name)
            if topic is not None and 0 <= number < len(topic.partitions):
                self.failed.add((name, number, slot))
                if (name, number) in partial:
                    self._partial.add((name, number, slot))
                after = without_storage(
                    topic.partitions[number],
                    slot,
                    self.slots.of(topic.topic_id, number),
                    lasting=lasting,
                    broken=self._broken(name, topic.partitions[number]),
                    unclean_allowed=_unclean_allowed(topic, defaults),
                )
                if after is not None:
                    changes.setdefault(name, {})[number] = after
        try:
            self.change(changes)
        except StorageFault as fault:
            _logger.error(
                "slot %d has failed storage, but its partitions cannot get new leaders yet: %s", slot, fault
            )
            self._review_again()

    def raise_epochs(self, request: LogsAhead) -> None:
        """Raises leader epochs above those of the logs: the store was restored from a backup.

        What the store does not take is reported again by the worker, which leads none of these until it has.
        """
        changes: dict[str, dict[int, PartitionImage]] = {}
        for each in request.partitions:
            partition = self._ahead(each, request.slot)
            if partition is None:
                continue
            self.copies.keep_all(each.topic_id, each.partition)
            changes.setdefault(each.topic, {})[each.partition] = raised(
                partition,
                each.log_epoch,
                self.slots.of(each.topic_id, each.partition),
                longest_slot=each.longest_slot,
            )
        if not changes:
            return
        named = [TopicPartition(name, number) for name, changed in changes.items() for number in changed]
        _logger.error(
            "the metadata store is older than the logs of slot %d, as after the restore of a backup: leader epochs of"
            " %d partitions are raised above those of the logs, and the longest logs lead: %s",
            request.slot,
            len(named),
            _named(named),
        )
        try:
            self.change(changes)
        except StorageFault as fault:
            _logger.error("leader epochs are not raised yet: %s", fault)
            return
        for each in request.partitions:
            self.copies.may_go(each.topic_id, each.partition)

    def _ahead(self, each: LogAhead, slot: int) -> PartitionImage | None:
        """The partition of a report; None where something else was decided meanwhile."""
        topic = self._state.topics.get(each.topic)
        if (
            topic is None
            or topic.topic_id != each.topic_id
            or not 0 <= each.partition < len(topic.partitions)
        ):
            return None
        partition = topic.partitions[each.partition]
        is_now = (partition.incarnation, partition.leader, partition.leader_epoch) == (
            each.incarnation,
            slot,
            each.leader_epoch,
        )
        return partition if is_now and each.longest_slot in self.slots.all else None

    def _broken(self, name: str, partition: PartitionImage) -> list[int]:
        """Slots whose copies have failed."""
        return [slot for slot in partition.replicas if (name, partition.partition, slot) in self.failed]

    def leads_nothing(self, name: str, partition: PartitionImage) -> bool:
        """Whether the leader's copy has failed, and it does not serve after all: then nothing can be acknowledged."""
        return (name, partition.partition, partition.leader) in self.failed and (
            self._state.rows.opened_as(partition, partition.leader) is None
        )

    def _grant_grace(self, half: Role) -> None:
        since = self.slots.state(half)
        grace_ms = START_GRACE_MS if since is HalfState.PRESUMED else GRACE_MS
        self._alarms(grace_ms, partial(self._grace_is_over, half, since))

    def _grace_is_over(self, half: Role, since: HalfState) -> None:
        if self.slots.overdue(half, since):
            _logger.warning("%s did not restart in time", half)
            self.copies.gone(half)
            self._look_at_slots()

    def _look_at_slots(self) -> None:
        if self.slots.live() != self._state.live:
            self._changed_slots()
        self.review()

    def review(self) -> None:
        """Looks whether the states of the slots ask for any change."""
        defaults = self._topic_defaults()
        changes: dict[str, dict[int, PartitionImage]] = {}
        for topic in self._state.topics.values():
            unclean_allowed = _unclean_allowed(topic, defaults)
            min_insync = int(topic.configs.get(MIN_INSYNC) or defaults.get(MIN_INSYNC) or 1)
            for each in topic.partitions:
                slots = self.slots.of(topic.topic_id, each.partition)
                if self.failed and self.leads_nothing(topic.name, each):
                    after = self._reviewed_offline(topic.name, each, slots, unclean_allowed=unclean_allowed)
                else:
                    after = reviewed(each, slots, unclean_allowed=unclean_allowed, min_insync=min_insync)
                if after is not None:
                    changes.setdefault(topic.name, {})[each.partition] = after
        if not changes:
            return
        try:
            self.change(changes)
        except StorageFault as fault:
            _logger.error("cannot elect leaders, retrying in %d ms: %s", RETRY_MS, fault)
            self._review_again()

    def _reviewed_offline(
        self, name: str, partition: PartitionImage, slots: PartitionSlots, *, unclean_allowed: bool
    ) -> PartitionImage | None:
        """Of a leader without storage: who can lead may have come back by now. Whoever is away stays in sync, for there
        is nothing that it misses."""
        after = without_storage(
            partition,
            partition.leader,
            slots,
            lasting=False,
            broken=self._broken(name, partition),
            unclean_allowed=unclean_allowed,
        )
        if after is None and not slots.is_live(partition.leader):
            return reviewed(partition, slots, unclean_allowed=unclean_allowed)
        return after

    def _review_again(self) -> None:
        if not self._retrying:
            self._retrying = True

            def again() -> None:
                self._retrying = False
                self.review()

            self._alarms(RETRY_MS, again)

    # Changes

    def change(self, changes: Changes) -> None:
        """Makes `changes`: the store first.

        Raises:
            StorageFault: the store could not take them, or not all: what it took is done.
        """
        moved: Counter[tuple[int, int]] = Counter()
        left: dict[int, list[TopicPartition]] = {}
        joined: dict[int, list[TopicPartition]] = {}
        for batch in _batches(changes):
            after = {
                name: replace(
                    self._state.topics[name],
                    partitions=tuple(
                        changed.get(each.partition, each) for each in self._state.topics[name].partitions
                    ),
                )
                for name, changed in batch.items()
            }
            operations: list[Operation] = []
            for name, changed in batch.items():
                if _placement(after[name]) != _placement(self._state.topics[name]):
                    operations += new_placement(after[name])
                operations += new_states(name, changed.values(), self._fence.epoch)
            self._store.multi([self._fence.check, *operations])
            for name, changed in batch.items():
                for number, partition in changed.items():
                    was = self._state.topics[name].partitions[number].isr
                    for slot in set(was) - set(partition.isr):
                        left.setdefault(slot, []).append(TopicPartition(name, number))
                    for slot in set(partition.isr) - set(was):
                        joined.setdefault(slot, []).append(TopicPartition(name, number))
                    if partition.leader != NO_LEADER and was and partition.leader not in was:
                        self.unclean_elections += 1
                self._adopt(self._state.topics[name], after[name], changed, moved)

        for slot, partitions in sorted(left.items()):
            self.isr_shrinks += len(partitions)
            _logger.warning("slot %d left the ISR of %s", slot, _named(partitions))
        for slot, partitions in sorted(joined.items()):
            self.isr_expansions += len(partitions)
            _logger.info("slot %d joined the ISR of %s", slot, _named(partitions))
        for (before, now), count in sorted(moved.items()):
            _logger.info("%d partitions: leader %d → %d", count, before, now)

    def news(self) -> bool:
        """Whether any leader or placement has changed since this was asked last."""
        news, self._news = self._news, False
        return news

    def expect_news(self) -> None:
        """Has `news` say yes once more."""
        self._news = True

    def _adopt(
        self,
        before: TopicImage,
        after: TopicImage,
        changed: Mapping[int, PartitionImage],
        moved: Counter[tuple[int, int]],
    ) -> None:
        self._news = True
        self._state.add(after)
        for number, partition in changed.items():
            was = before.partitions[number]
            if partition.leader != was.leader:
                moved[was.leader, partition.leader] += 1
            self._state.rows.write(partition)
            self.copies.touch(after.name, number)
            for slot in partition.replicas:
                if slot not in was.replicas:
                    self.copies.join((after.name, after.topic_id, number), slot)
            for slot in partition.isr:
                if slot not in was.isr and (after.name, number, slot) in self._partial:
                    self._partial.discard((after.name, number, slot))
                    self.failed.discard((after.name, number, slot))
            for slot in was.replicas:
                if slot not in partition.replicas:
                    self.copies.leave((after.name, after.topic_id, number), slot)
                    self.failed.discard((after.name, number, slot))
            self._unseen[after.name, number] = None

    def forget(self, topic: TopicImage) -> None:
        """It is gone for good; another one may have its name."""
        self.failed = {each for each in self.failed if each[0] != topic.name}
        self.copies.forget(topic)

    def has_left(self, topic: str, number: int, slot: int) -> None:
        """The slot, which is no replica any more, has deleted its files."""
        image = self._state.topics.get(topic)
        if image is not None and number < len(image.partitions) and slot in image.partitions[number].leaving:
            self._left.add((topic, number, slot))

    def forget_left(self) -> None:
        """Lets the store know of the files that are gone. Until it does, they are deleted once more."""
        if not self._left:
            return
        after: dict[str, TopicImage] = {}
        for name, number, slot in self._left:
            topic = after.get(name) or self._state.topics.get(name)
            if topic is not None and number < len(topic.partitions):
                before = topic.partitions[number]
                now = replace(before, leaving=tuple(each for each in before.leaving if each != slot))
                partitions = tuple(now if each is before else each for each in topic.partitions)
                after[name] = replace(topic, partitions=partitions)
                self._unseen[name, number] = None
        operations = [each for topic in after.values() for each in new_placement(topic)]
        try:
            for start in range(0, len(operations), STATES_AT_ONCE):
                self._store.multi([self._fence.check, *operations[start : start + STATES_AT_ONCE]])
        except StorageFault as fault:
            _logger.error("cannot record replicas that left yet: %s", fault)
            return
        self._left.clear()
        for topic in after.values():
            self._state.add(topic)

    # The ISR

    def alter(self, request: AlterPartitions) -> AlteredPartitions:
        """What becomes of the ISRs that the leaders of one slot propose; one turn, one change of the store."""
        changes: dict[str, dict[int, PartitionImage]] = {}
        refusals: dict[tuple[str, int], int] = {}
        for wanted in request.partitions:
            key = (wanted.topic, wanted.partition)
            try:
                partition = self._found(wanted)
                after = with_isr(
                    partition,
                    wanted.isr,
                    self.slots.of(wanted.topic_id, wanted.partition),
                    proposer=request.slot,
                    leader_epoch=wanted.leader_epoch,
                    partition_epoch=wanted.partition_epoch,
                )
            except RejectedRequest as refusal:
                refusals[key] = refusal.code
                continue
            if after is not None:
                changes.setdefault(wanted.topic, {})[wanted.partition] = after
        try:
            if changes:
                self.change(changes)
        except StorageFault as fault:
            _logger.error("cannot change the ISR: %s", fault)
            for name, changed in changes.items():
                for number, after in changed.items():
                    if self._state.topics[name].partitions[number] != after:
                        refusals[name, number] = int(code_for(fault))
        for name, changed in changes.items():
            topic = self._state.topics[name]
            for number in changed:
                if (name, number) not in refusals:
                    self.copies.agreed(request.slot, topic, topic.partitions[number])
        answers = tuple(
            self._altered(wanted, refusals.get((wanted.topic, wanted.partition), 0))
            for wanted in request.partitions
        )
        return AlteredPartitions(self._fence.epoch, answers)

    def _found(self, wanted: WantedIsr) -> PartitionImage:
        topic = self._state.topics.get(wanted.topic)
        if topic is None or topic.topic_id != wanted.topic_id:
            raise RejectedRequest(ErrorCode.UNKNOWN_TOPIC_ID, "No such topic.")
        if not 0 <= wanted.partition < len(topic.partitions):
            raise RejectedRequest(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such partition.")
        partition = topic.partitions[wanted.partition]
        if partition.incarnation != wanted.incarnation:
            raise RejectedRequest(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Another use of its row.")
        return partition

    def _altered(self, wanted: WantedIsr, error: int) -> AlteredPartition:
        topic = self._state.topics.get(wanted.topic)
        if topic is None or not 0 <= wanted.partition < len(topic.partitions):
            return AlteredPartition(wanted.topic, wanted.partition, wanted.incarnation, error)
        partition = topic.partitions[wanted.partition]
        return AlteredPartition(
            topic=wanted.topic,
            partition=wanted.partition,
            incarnation=partition.incarnation,
            error=error,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=partition.isr,
        )

    # What clients see

    def shown(self, topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        """A partition that clients have not seen yet, as they may see it now."""
        if self._may_show(topic, partition) or partition.leader_epoch == 0:
            return partition
        self._unseen[topic.name, partition.partition] = None
        return replace(partition, leader=NO_LEADER, leader_epoch=partition.leader_epoch - 1)

    def show(self) -> None:
        """Lets clients see what they may by now."""
        changed: dict[str, dict[int, PartitionImage]] = {}
        for name, number in list(self._unseen):
            topic, seen = self._state.topics.get(name), self._state.visible.get(name)
            if topic is None or number >= len(topic.partitions):
                del self._unseen[name, number]
                continue
            if seen is None or number >= len(seen.partitions):
                continue
            partition = topic.partitions[number]
            if seen.partitions[number].leader_epoch == partition.leader_epoch or self._may_show(
                topic, partition
            ):
                del self._unseen[name, number]
                if seen.partitions[number] != partition:
                    changed.setdefault(name, {})[number] = partition
        for name, each in changed.items():
            self._state.show_changed(name, each)

    def is_seen(self, topic: str, number: int) -> bool:
        """Whether clients see the partition as it is."""
        return (topic, number) not in self._unseen

    def _may_show(self, topic: TopicImage, partition: PartitionImage) -> bool:
        return partition.leader == NO_LEADER or self.copies.is_led(topic, partition)


def _unclean_allowed(topic: TopicImage, defaults: Mapping[str, str]) -> bool:
    return topic.configs.get(UNCLEAN_ELECTION, defaults.get(UNCLEAN_ELECTION)) == "true"


def _placement(topic: TopicImage) -> list[tuple[tuple[int, ...], ...]]:
    return [(each.replicas, each.adding, each.removing, each.leaving) for each in topic.partitions]


def _batches(changes: Changes) -> Iterable[Changes]:
    """Pieces that the store takes in one go; a topic's partitions may be in several of them."""
    batch: dict[str, dict[int, PartitionImage]] = {}
    size = 0
    for name, changed in changes.items():
        for number, partition in changed.items():
            batch.setdefault(name, {})[number] = partition
            size += 1
            if size == STATES_AT_ONCE:
                yield batch
                batch, size = {}, 0
    if batch:
        yield batch


def _named(partitions: Collection[TopicPartition]) -> str:
    """Name the partitions for a log line: the first of them, and how many more there are."""
    named = ", ".join(str(each) for each in islice(partitions, NAMED_MAX))
    more = len(partitions) - NAMED_MAX
    return f"{named} and {more} more partitions" if more > 0 else named
