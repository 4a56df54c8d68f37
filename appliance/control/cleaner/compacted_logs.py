"""The compacted logs there are, what is known of each, and which is cleaned next. Pure but for the checkpoint files.

unknown ─ survey ─→ examined ─ dirty enough ─→ the dirtiest is cleaned ─→ to be examined again
   ↑                  │  └──── not yet: a time to look again, or nothing until its owner says LOOK
   └── LOOK, or time ─┘
uncleanable: a segment is corrupt, or a batch too large for the map. Stays so until the log is cut or made anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import msgspec

from appliance.channels.roles import Role, owner_of, replica_of
from appliance.cluster import ClusterImage, PartitionImage, TopicImage, TopicPartition
from appliance.errors import CorruptFile, StorageFault
from appliance.log.checkpoint import read_offsets, write_offsets
from appliance.log.config import LogSettings
from appliance.log.dirtiness import Dirtiness
from appliance.log.file_names import CLEANER_OFFSETS, partition_directory_name

_log = logging.getLogger(__name__)


class CompactedLog(msgspec.Struct):
    """A slot's copy of a compacted partition. `found` None: to be examined. `follows`: another slot leads."""

    name: TopicPartition
    topic_id: UUID
    slot: int
    follows: bool
    row: int
    incarnation: int
    settings: LogSettings
    leader: Role
    """The worker that has it where its slot leads."""
    parent: Path
    """The log directory it lies in, as its owner last said."""
    found: Dirtiness | None = None
    must_examine: bool = True
    look_again_ms: int | None = None
    is_held_back: bool = False
    """Closed segments wait for the last stable offset, whose move nobody tells."""
    uncleanable_since_cuts: int | None = None
    """`LogBounds.cuts` of the log that could not be cleaned."""
    cleaned_cuts: int | None = None
    """`LogBounds.cuts` when its checkpoint was written: after another cut the checkpoint means nothing."""
    surveyed: bool = False

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self.parent / partition_directory_name(self.name)

    @property
    def owner(self) -> Role:
        return replica_of(self.slot) if self.follows else self.leader

    def owned_anew(self) -> None:
        """Another process has it, or another life of the same: all is to be surveyed anew."""
        self.must_examine = True
        self.surveyed = False
        # Cuts are counted from the beginning of the owner's life.
        self.cleaned_cuts = self.uncleanable_since_cuts = None


class CompactedLogs:
    """All of them, by slot and row. Fed with metadata images.

    Args:
        directories: the log directories of each slot.
        defaults: of an image and a slot, what its logs go by where their topic says nothing.
        workers: how many each slot has.
    """

    __slots__ = ("_checkpoints", "_defaults", "_directories", "_version", "_workers", "by_place")

    def __init__(
        self,
        directories: Mapping[int, Sequence[Path]],
        defaults: Callable[[ClusterImage, int], Mapping[str, str]],
        *,
        workers: int = 1,
    ) -> None:
        self._directories = directories
        self._workers = workers
        self._defaults = defaults
        self._version = 0
        self.by_place: dict[tuple[int, int], CompactedLog] = {}
        self._checkpoints: dict[Path, dict[TopicPartition, int]] = {}

    def follow(self, image: ClusterImage) -> None:
        """Takes in what an image says; what it says no more is forgotten, with its checkpoint."""
        if image.version == self._version:
            return
        self._version = image.version
        living: dict[tuple[int, int], CompactedLog] = {}
        defaults = {slot: dict(self._defaults(image, slot)) for slot in self._directories}
        for topic in image.topics.values():
            by_slot = {
                slot: LogSettings.from_configs(defaults[slot] | topic.configs)
                for slot in {slot for partition in topic.partitions for slot in partition.replicas}
                if slot in defaults
            }
            for partition in topic.partitions:
                for slot in partition.replicas:
                    settings = by_slot.get(slot)
                    if settings is not None and settings.is_compacted:
                        living[slot, partition.row] = self._known(topic, partition, slot, settings=settings)
        gone = [log for place, log in self.by_place.items() if living.get(place) is not log]
        self.by_place = living
        remaining = {(log.slot, log.name): log.topic_id for log in living.values()}
        for log in gone:
            if remaining.get((log.slot, log.name)) != log.topic_id:
                self._forget(log)

    def _known(
        self, topic: TopicImage, partition: PartitionImage, slot: int, *, settings: LogSettings
    ) -> CompactedLog:
        """A slot's copy as it is known by now, or a new one."""
        name, follows = TopicPartition(topic.name, partition.partition), slot != partition.leader
        known = self.by_place.get((slot, partition.row))
        if known is None or (known.name, known.topic_id, known.incarnation) != (
            name,
            topic.topic_id,
            partition.incarnation,
        ):
            return CompactedLog(
                name,
                topic.topic_id,
                slot,
                follows,
                partition.row,
                partition.incarnation,
                settings,
                owner_of(slot, topic.topic_id, partition.partition, workers=self._workers),
                self._directories[slot][0],
            )
        if known.follows != follows:
            known.follows = follows
            known.owned_anew()
        if known.settings != settings:
            known.settings, known.must_examine = settings, True
        return known

    def _forget(self, log: CompactedLog) -> None:
        for parent in self._directories[log.slot]:
            try:
                # Only where there is a file: the place of a disk that was taken out stays empty.
                if self._in(parent).pop(log.name, None) is not None and (parent / CLEANER_OFFSETS).exists():
                    self._write(parent)
            except StorageFault as fault:
                _log.warning("cannot update the checkpoint of %s, which was removed: %s", log.name, fault)

    def lies_in(self, log: CompactedLog, index: int) -> None:
        """Its owner says in which log directory of the slot it lies; its checkpoint goes there with it."""
        before, log.parent = log.parent, self._directories[log.slot][index]
        if before == log.parent or log.name not in self._in(before):
            return
        self._in(log.parent)[log.name] = self._in(before).pop(log.name)
        try:
            for parent in (log.parent, before):
                self._write(parent)
        except StorageFault as fault:
            _log.warning("cannot update the checkpoint of %s, which has moved: %s", log.name, fault)

    def look(self, slot: int, rows: Iterable[int]) -> None:
        """These of a slot are to be examined; unknown rows are passed over."""
        for row in rows:
            if (log := self.by_place.get((slot, row))) is not None:
                log.must_examine = True

    def look_at_owner(self, owner: Role) -> None:
        """Everything of a worker or a replica that has a new life is to be surveyed anew."""
        for log in self.by_place.values():
            if log.owner is owner:
                log.owned_anew()

    def to_examine(self, now_ms: int) -> list[CompactedLog]:
        """Whose state is not known, or may have changed by now."""
        for log in self.by_place.values():
            if log.look_again_ms is not None and log.look_again_ms <= now_ms:
                log.must_examine = True
        return [log for log in self.by_place.values() if log.must_examine]

    def dirtiest(self) -> CompactedLog | None:
        """What is to be cleaned next, by the share of dirty bytes; None if nothing is dirty enough."""
        candidates = [
            log
            for log in self.by_place.values()
            if log.found is not None
            and log.uncleanable_since_cuts is None
            and log.found.is_cleanable(log.settings)
        ]
        return max(candidates, key=lambda log: log.found.ratio if log.found else 0.0, default=None)

    def next_look_ms(self) -> int | None:
        """When one must be looked at that nobody writes to, by the wall clock."""
        return min(
            (log.look_again_ms for log in self.by_place.values() if log.look_again_ms is not None),
            default=None,
        )

    # Checkpoints

    def checkpoint(self, log: CompactedLog, cuts: int) -> int:
        """Where its last round ended; 0 if that is not known."""
        if log.cleaned_cuts not in (None, cuts):
            return 0
        return self._in(log.parent).get(log.name, 0)

    def cleaned(self, log: CompactedLog, end_offset: int, cuts: int) -> None:
        """A round ended here.

        Raises:
            StorageFault: the checkpoint could not be written; the next life cleans the same again.
        """
        log.cleaned_cuts = cuts
        self._in(log.parent)[log.name] = end_offset
        self._write(log.parent)

    def _in(self, parent: Path) -> dict[TopicPartition, int]:
        known = self._checkpoints.get(parent)
        if known is None:
            try:
                known = read_offsets(parent / CLEANER_OFFSETS)
            except CorruptFile as fault:
                _log.warning("%s; every log in this directory will be compacted from the beginning", fault)
                known = {}
            self._checkpoints[parent] = known
        return known

    def _write(self, parent: Path) -> None:
        write_offsets(parent / CLEANER_OFFSETS, self._checkpoints[parent])

    def statistics(self) -> dict[str, int]:
        logs = self.by_place.values()
        return {
            "compacted": len(logs),
            "uncleanable": sum(log.uncleanable_since_cuts is not None for log in logs),
        }
