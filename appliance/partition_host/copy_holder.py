"""Who of a slot holds copies of partitions, the worker those it leads and the replica those it follows: how both obey.

The controller's word is final: a full assignment replaces everything, a delta adds and removes. A command with an
older controller epoch than one already obeyed is refused, so a superseded controller changes nothing. What cannot be
opened is told to the controller and kept in `unopened`, to be tried again: a full disk has room some day.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec

from appliance.channels.control_channel import Assign, Assigned, AssignedPartition
from appliance.cluster import TopicPartition
from appliance.errors import ApplianceError, StorageFault
from appliance.protocol.errors import ErrorCode, code_for

_Failures = dict[str, tuple[int, str]]
_SHARED: Final = ("topic", "topic_id", "replicas", "isr", "configs")


class HeldCopy(Protocol):
    """What is held of a partition."""

    incarnation: int


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
    """Copies by name, made to be what the controller says."""

    __slots__ = ("_defaults", "_offline_as", "_warn", "by_name", "controller_epoch", "offline", "unopened")

    HELD: ClassVar[str]
    """What is done with a copy, for the log: `served`, `followed`."""

    def __init__(self, *, log_defaults: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._defaults = dict(log_defaults)
        self._warn = warn
        self.by_name: dict[TopicPartition, Held] = {}
        self.controller_epoch = -1
        self.unopened: dict[TopicPartition, AssignedPartition] = {}
        self.offline: dict[TopicPartition, StorageFault] = {}
        """What is not opened in this life of the process, since its storage has failed."""
        self._offline_as: dict[TopicPartition, int] = {}

    def _known_fault(self, assigned: AssignedPartition) -> StorageFault | None:
        """What keeps the copy from being opened. That of a topic before, which had the same name, does not."""
        name = TopicPartition(assigned.topic, assigned.partition)
        if self._offline_as.get(name) != assigned.incarnation:
            self._forget_fault(name)
        return self.offline.get(name)

    def _note_fault(self, name: TopicPartition, incarnation: int, fault: StorageFault) -> None:
        self.offline[name], self._offline_as[name] = fault, incarnation

    def _forget_fault(self, name: TopicPartition) -> None:
        self.offline.pop(name, None)
        self._offline_as.pop(name, None)

    def obey(self, command: Assign) -> Assigned | None:
        """Carries `command` out. None when its controller epoch is old (nothing has changed then), or when its process
        was told to stop in the middle: what it has not come to is neither held nor `unopened`."""
        if command.controller_epoch < self.controller_epoch:
            self._warn(
                f"refused a command of controller epoch {command.controller_epoch} < {self.controller_epoch}"
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
        for count, told in enumerate(command.partitions, 1):
            if not self._goes_on(count):
                return None
            assigned = before = told if before is None else _sharing(told, before)
            name = TopicPartition(assigned.topic, assigned.partition)
            self.unopened[name] = assigned
            is_new = not command.full and assigned.leader_epoch == 0
            self._attempt(failures, name, partial(self._take, assigned, is_new=is_new))
        return Assigned(command.controller_epoch, failures)

    def open_again(self) -> list[Held]:
        """Tries the assigned partitions that could not be opened, as when the disk was full, once more each.

        Returns those that are held now.
        """
        opened = []
        for name, assigned in list(self.unopened.items()):
            with suppress(ApplianceError, OSError):
                self._take(assigned, is_new=False)
                self._warn(f"partition {name} is {self.HELD} after all")
                opened.append(self.by_name[name])
        return opened

    def _attempt(self, failures: _Failures, name: TopicPartition, action: Callable[[], None]) -> None:
        try:
            action()
        except ApplianceError as error:
            failures[str(name)] = (int(code_for(error)), str(error))
            self._warn(f"partition {name}: {error}")
        except OSError as error:
            failures[str(name)] = (int(ErrorCode.KAFKA_STORAGE_ERROR), str(error))
            self._warn(f"partition {name}: {error}")

    @abstractmethod
    def _goes_on(self, count: int) -> bool:
        """Asked before each partition of a command (`count` is 1 for the first); False ends it here."""

    @abstractmethod
    def _take(self, assigned: AssignedPartition, *, is_new: bool) -> None:
        """Opens the copy, or has the open one go by what is new in `assigned`; takes it out of `unopened`.

        `is_new`: its partition was just created, so no log directory that has failed can have it.
        """

    @abstractmethod
    def _apply_defaults(self, name: TopicPartition) -> None:
        """The log of `name` goes by its topic's settings and the new defaults."""

    @abstractmethod
    def _release(self, name: TopicPartition) -> None:
        """Lets go of the copy, whose files stay."""

    @abstractmethod
    def _remove(self, name: TopicPartition, topic_id: UUID) -> None:
        """Lets go of the copy and deletes its files."""
