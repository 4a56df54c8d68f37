"""The first service of the runtime: what a partition's machine does between its loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from appliance.control.coordinator.group_machines import GroupMachine, GroupMachines
from appliance.control.coordinator.offsets.offset_book import OffsetBook


class Book(OffsetBook):
    """Says that it was packed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_packed = False

    def packing(self) -> Iterator[int]:
        self.is_packed = True
        yield 1


class Shards:
    """Keeps what is to be done later."""

    def __init__(self) -> None:
        self.actions: list[Any] = []

    def later(self, _delay_ms: int, action: Any) -> None:
        self.actions.append(action)

    def run_in_steps(self, steps: Iterator[Any], **_arguments: Any) -> None:
        list(steps)


class Owner(GroupMachines):
    """The service without its groups, which packing does not need."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards  # type: ignore[assignment] # two of its methods are enough


def test_only_the_book_of_the_finished_load_is_packed() -> None:
    """A load that is under way when the time comes has given places in its book away: they must stay valid."""
    shards = Shards()
    owner = Owner(shards)
    machine = GroupMachine(owner, 0)
    loaded, loading = Book(), Book()
    machine.book = loaded
    owner.pack_later(machine)
    machine.book = loading
    for action in shards.actions:
        action()
    assert (loaded.is_packed, loading.is_packed) == (True, False)


def test_a_book_is_packed_after_its_load() -> None:
    shards = Shards()
    owner = Owner(shards)
    machine = GroupMachine(owner, 0)
    machine.book = book = Book()
    owner.pack_later(machine)
    (action,) = shards.actions
    action()
    assert book.is_packed
