"""The partitions that one process of a slot holds open: a worker those it leads, a replica those it follows.

The controller's command is final: a full assignment replaces everything, a delta adds and removes. A command with an
older controller epoch than one already carried out is rejected, so a superseded controller changes nothing. What
cannot be opened is reported to the controller and stays in `unopened`, to be tried again: a full disk may get room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec

from appliance.channels.control_channel import Assign, Assigned, AssignedPartition
from appliance.channels.partition_table import PartitionTable
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, StorageFault
from appliance.log.config import LastSettings
from appliance.log.log_directories import LogDirectories
from appliance.log.others_directories import DirectoriesOf
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.listener import PartitionListener
from appliance.protocol.errors import ErrorCode, code_for

_Failures = dict[str, tuple[int, str]]
_SHARED: Final = ("topic", "topic_id", "replicas", "isr", "configs")


class HeldCopy(Protocol):
    """What this room needs of a partition that is held open."""

    topic_partition: TopicPartition
    row: int
    incarnation: int
    directory: int

    @property
    def high_watermark(self) -> int: ...

    def closed(self) -> None:
        """Publish that the log was closed in good order."""


Held = TypeVar("Held", bound=HeldCopy)


def _sharing(assigned: AssignedPartition, before: AssignedPartition) -> AssignedPartition:
    """The same with the objects of `before` where they are equal: every command decodes its own, and thousands of
    copies keep them."""
    return msgspec.structs.replace(
        assigned,
        **{
            field: known for field in _SHARED if (known := getattr(before, field)) == getattr(assigned, field)
        },
    )


class CopyHolder(ABC, Generic[Held]):
    """Partitions by name, made to be what the controller says. One slot, all its log directories.

    Args:
        directories_of: The log directories of a slot.
        publisher: Publishes the state of each partition for readers off the disk.
        listener: Asked before each log that is opened.

    `offline`: what this life of the process does not open, because its storage has failed. `partial`: those of them
    that lack files, and the leader epoch in which they were refused.
    """

    HELD: ClassVar[str]
    """What is done with a partition, for the log: `served`, `followed`."""
    OFFLINE: ClassVar[str]
    """What it is after its storage has failed, for the log."""

    def __init__(
        self,
        directories: LogDirectories,
        table: PartitionTable,
        *,
        slot: int,
        log_defaults: Mapping[str, str],
        directories_of: DirectoriesOf,
        publisher: StatePublisher,
        listener: PartitionListener[Held],
        warn: Callable[[str], None],
    ) -> None:
        self._directories = directories
        self._table = table
        self._slot = slot
        self._defaults = dict(log_defaults)
        self._directories_of = directories_of
        self._publisher = publisher
        self._listener = listener
        self.warn = warn
        self._configs: dict[TopicPartition, Mapping[str, str]] = {}
        self._settings = LastSettings()
        self.by_name: dict[TopicPartition, Held] = {}
        self.controller_epoch = -1
        self.unopened: dict[TopicPartition, AssignedPartition] = {}
        self.offline: dict[TopicPartition, StorageFault] = {}
        self._offline_as: dict[TopicPartition, int] = {}
        self.partial: dict[TopicPartition, int] = {}

    def _known_fault(self, assigned: AssignedPartition) -> StorageFault | None:
        """Return what keeps a partition from being opened. A fault of an earlier topic of the same name does not."""
        name = TopicPartition(assigned.topic, assigned.partition)
        if self._offline_as.get(name) != assigned.incarnation:
            self._forget_fault(name)
        return self.offline.get(name)

    def _note_fault(self, name: TopicPartition, incarnation: int, fault: StorageFault) -> None:
        self.offline[name], self._offline_as[name] = fault, incarnation

    def _forget_fault(self, name: TopicPartition) -> None:
        self.offline.pop(name, None)
        self._offline_as.pop(name, None)
        self.partial.pop(name, None)

    def obey(self, command: Assign) -> Assigned | None:
        """Carry `command` out. Return None when its controller epoch is old (nothing has changed then), or when the
        process was told to stop in the middle: what was not reached is neither held nor `unopened`."""
        steps = self.steps(command)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done: Assigned | None = end.value
                return done

    def steps(self, command: Assign) -> Generator[None, None, Assigned | None]:
        """Carry `command` out as `obey` does, and pause before each log that is opened."""
        if command.controller_epoch < self.controller_epoch:
            self.warn(
                f"rejected a command of controller epoch {command.controller_epoch}, which is older than"
                f" {self.controller_epoch}"
            )
            return None
        self.controller_epoch = command.controller_epoch
        failures: _Failures = {}
        if command.log_defaults is not None and command.log_defaults != self._defaults:
            self._defaults = command.log_defaults
            for name in self.by_name:
                self._attempt(failures, name, partial(self._apply_defaults, name))
        if command.full:
            self.unopened.clear()
            wanted = {(p.topic, p.partition, p.incarnation) for p in command.partitions}
            for name, held in list(self.by_name.items()):
                if (name.topic, name.partition, held.incarnation) not in wanted:
                    self._attempt(failures, name, partial(self._release, name))
        for topic, _, index in command.released:
            name = TopicPartition(topic, index)
            self._attempt(failures, name, partial(self._release, name))
        for topic, topic_id, index in command.removed:
            name = TopicPartition(topic, index)
            self._attempt(failures, name, partial(self._remove, name, topic_id))
        before: AssignedPartition | None = None
        for told in command.partitions:
            yield
            if not self._listener.before_opening():
                return None
            assigned = before = told if before is None else _sharing(told, before)
            name = TopicPartition(assigned.topic, assigned.partition)
            self.unopened[name] = assigned
            is_new = not command.full and assigned.leader_epoch == 0
            self._attempt(failures, name, partial(self._take, assigned, is_new=is_new))
        return Assigned(command.controller_epoch, failures)

    def open_again(self) -> list[Held]:
        """Try the partitions in `unopened` once more each. Return those that are held now."""
        opened = []
        for name, assigned in list(self.unopened.items()):
            with suppress(ApplianceError, OSError):
                self._take(assigned, is_new=False)
                self.warn(f"partition {name} is {self.HELD} after all")
                opened.append(self.by_name[name])
        return opened

    def _attempt(self, failures: _Failures, name: TopicPartition, action: Callable[[], None]) -> None:
        try:
            action()
        except ApplianceError as error:
            failures[str(name)] = (int(code_for(error)), str(error))
            self.warn(f"partition {name}: {error}")
        except OSError as error:
            failures[str(name)] = (int(ErrorCode.KAFKA_STORAGE_ERROR), str(error))
            self.warn(f"partition {name}: {error}")

    def touched_by(self, command: Assign) -> list[Held]:
        """Return those that are held and that `command` has opened, or given other settings."""
        if command.log_defaults is not None:
            return list(self.by_name.values())
        named = (self.by_name.get(TopicPartition(p.topic, p.partition)) for p in command.partitions)
        return [held for held in named if held is not None]

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return them for the checkpoint."""
        return {name: held.high_watermark for name, held in self.by_name.items()}

    # Partitions that are let go of

    def take_offline(self, held: Held, fault: StorageFault) -> None:
        """Hold a partition no longer in this life of the process, because its storage has failed.

        What the disk has of it is not known, and reading it again would show what the page cache has. The next life
        recovers it.
        """
        name = held.topic_partition
        if self.by_name.get(name) is not held:
            return
        self._note_fault(name, held.incarnation, fault)
        self._let_go(name, is_offline=True)
        self._directories.give_up(name)

    def take_directory_offline(self, index: int, fault: StorageFault) -> list[TopicPartition]:
        """Take all partitions of a log directory that has failed offline. The directory is not touched again."""
        gone = [held for held in self.by_name.values() if held.directory == index]
        for held in gone:
            self.take_offline(held, fault)
        self._directories.fail(index, fault)
        return [held.topic_partition for held in gone]

    def _release(self, name: TopicPartition) -> None:
        """Close a log for the slot's other process, without waiting for the disk. Its files stay."""
        held = self._let_go(name)
        if held is not None:
            self._hand_over(name, held.row, held.incarnation)
            held.closed()

    def _hand_over(self, name: TopicPartition, row: int, incarnation: int) -> None:
        """Close the log of a row, and leave in shared memory how it was closed."""
        self._directories.hand_over(name, partial(self._table.leave, row, incarnation, self._slot))

    def _remove(self, name: TopicPartition, topic_id: UUID) -> None:
        """Let go of a partition and delete its files."""
        self._forget_fault(name)
        self._let_go(name)
        self._directories.delete_partition(name, topic_id)

    # What worker and replica do in different ways

    @abstractmethod
    def _take(self, assigned: AssignedPartition, *, is_new: bool) -> None:
        """Open a partition, or apply what is new in `assigned` to the open one; take it out of `unopened`.

        `is_new`: its topic was just created, so no log directory that has failed can have it.
        """

    @abstractmethod
    def _apply_defaults(self, name: TopicPartition) -> None:
        """Apply the topic's settings and the new defaults to the log of `name`."""

    @abstractmethod
    def _let_go(self, name: TopicPartition, *, is_offline: bool = False) -> Held | None:
        """Stop serving or following, before the log is closed. Return the partition, None where there is none."""
