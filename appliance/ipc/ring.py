"""A ring of 64-byte messages between exactly two processes: one writes, one reads, neither waits for the
other.

    byte  0        8                       64       72                     128      136                    192
          ┌────────┬───────────────────────┬────────┬──────────────────────┬────────┬──────────────────────┐
          │ magic  │ zeros                 │ tail   │ zeros                │ head   │ zeros                │
          └────────┴───────────────────────┴────────┴──────────────────────┴────────┴──────────────────────┘
          192                 256                 320
          ┌───────────────────┬───────────────────┬──────
          │ slot 0            │ slot 1            │ slot 2 …     slots: a power of two, known from the size
          └───────────────────┴───────────────────┴──────

`tail` counts the messages ever published (written by the writer only), `head` those ever taken (written by
the reader only); message n lies in slot n mod slots. `head == tail` is empty, `tail - head == slots` is full.
`magic` is written by the writer when it attaches; zeros are a valid empty ring that nobody has attached to
yet, so whoever creates the memory need not write it. Each word has a cache line of its own, so that the two
sides share a line only when they have news for each other.

Worked example, 4 slots. The writer puts a, b, c: slots 0, 1, 2 are filled, tail is still 0 and the reader
sees nothing. It publishes: tail = 3. The reader drains: copies slots 0 to 2 out, then head = 3. The writer
puts d, e: slots 3 and 0. Killed before it publishes, d and e never were; the next writer begins at tail 3 and
writes over them.

x86-64 keeps the stores in this order; see fence.py for the one place that needs more (the doorbell).
All integers are little endian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from appliance.ipc.errors import RingCorrupt

CACHE_LINE_BYTES: Final = 64
SLOT_BYTES: Final = 64

MAGIC_OFFSET: Final = 0
TAIL_OFFSET: Final = MAGIC_OFFSET + CACHE_LINE_BYTES
HEAD_OFFSET: Final = TAIL_OFFSET + CACHE_LINE_BYTES
SLOTS_OFFSET: Final = HEAD_OFFSET + CACHE_LINE_BYTES

MAGIC: Final = int.from_bytes(b"APPRING1", "little")
DRAIN_LIMIT: Final = 256

_WORD_BYTES: Final = 8
_MAGIC: Final = MAGIC_OFFSET // _WORD_BYTES
_TAIL: Final = TAIL_OFFSET // _WORD_BYTES
_HEAD: Final = HEAD_OFFSET // _WORD_BYTES


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """A ring as one side sees it: `published` and `taken` count messages since the memory was created."""

    slots: int
    published: int
    taken: int

    @property
    def depth(self) -> int:
        return self.published - self.taken


def ring_size_bytes(slots: int) -> int:
    """The bytes a ring of `slots` messages needs; `slots` is a power of two."""
    if slots < 1 or slots & (slots - 1):
        raise ValueError(f"a ring has a power of two slots, not {slots}")
    return SLOTS_OFFSET + slots * SLOT_BYTES


def _slots_of(view: memoryview) -> int:
    slots, rest = divmod(len(view) - SLOTS_OFFSET, SLOT_BYTES)
    if rest or slots < 1 or slots & (slots - 1):
        raise ValueError(f"{len(view)} bytes are no ring: {SLOTS_OFFSET} and a power of two of {SLOT_BYTES}")
    return slots


def _fill_slot(message: Struct) -> Struct:
    """`message`, lengthened with zeros to a whole slot, so that a stretch of slots unpacks in one call."""
    if message.size > SLOT_BYTES:
        raise ValueError(f"a message of {message.size} bytes does not fit a slot of {SLOT_BYTES}")
    if not message.format.startswith("<"):
        raise ValueError(
            f"message format {message.format!r} does not begin with '<' (little endian, no gaps)"
        )
    padding = SLOT_BYTES - message.size
    return Struct(f"{message.format}{padding}x") if padding else message


class _RingSide:
    """What both sides know: the words, the slots and the check that head and tail can be believed."""

    __slots__ = ("_mask", "_message", "_slots", "_view", "_words")

    def __init__(self, view: memoryview, message: Struct) -> None:
        self._slots = _slots_of(view)
        self._mask = self._slots - 1
        self._message = _fill_slot(message)
        self._view = view
        self._words = view[:SLOTS_OFFSET].cast("Q")
        if self._words[_MAGIC] not in (0, MAGIC):
            raise RingCorrupt(f"ring magic is {self._words[_MAGIC]:#x}, neither 0 nor {MAGIC:#x}")
        self.check()

    @property
    def slots(self) -> int:
        return self._slots

    def depth(self) -> int:
        """Messages published and not yet taken."""
        return self._words[_TAIL] - self._words[_HEAD]

    def check(self) -> None:
        """Raises RingCorrupt unless head ≤ tail ≤ head + slots."""
        # Head first: while the other side works on, both only grow, and a tail read later can only be further
        # on.
        head = self._words[_HEAD]
        tail = self._words[_TAIL]
        if not head <= tail:
            raise self._corrupt(head, tail)
        if tail - head > self._slots and tail - self._words[_HEAD] > self._slots:
            raise self._corrupt(head, tail)

    def statistics(self) -> RingStatistics:
        taken = self._words[_HEAD]
        return RingStatistics(slots=self._slots, published=self._words[_TAIL], taken=taken)

    def _corrupt(self, head: int, tail: int) -> RingCorrupt:
        return RingCorrupt(f"ring of {self._slots} slots with head {head} and tail {tail}")


class RingWriter(_RingSide):
    """The writing side. `put` any number of messages, then `publish` them at once, then ring the reader's
    doorbell.

    Args:
        view: the ring's memory, `ring_size_bytes(slots)` long.
        message: the format of a message, "<…" and at most 64 bytes.
    """

    __slots__ = ("_limit", "_next", "_pack_into")

    def __init__(self, view: memoryview, message: Struct) -> None:
        super().__init__(view, message)
        self._pack_into: Callable[..., None] = self._message.pack_into
        self._next: int = self._words[_TAIL]
        self._limit: int = self._words[_HEAD] + self._slots
        self._words[_MAGIC] = MAGIC

    def put(self, *fields: Any) -> bool:
        """Writes one message into the next slot, unseen until `publish`. False when the ring is full."""
        position = self._next
        if position == self._limit and not self._look_again():
            return False
        self._pack_into(self._view, SLOTS_OFFSET + (position & self._mask) * SLOT_BYTES, *fields)
        self._next = position + 1
        return True

    def publish(self) -> None:
        """Makes everything put so far visible to the reader, by one store."""
        self._words[_TAIL] = self._next

    def free_slots(self) -> int:
        """How many messages can be put now."""
        self._look_again()
        return self._limit - self._next

    def unpublished(self) -> int:
        """Messages put and not yet published."""
        return self._next - self._words[_TAIL]

    def _look_again(self) -> bool:
        # The head is read only when the slots known to be free are used up: most puts touch no line of the
        # reader's.
        head = self._words[_HEAD]
        if not 0 <= self._next - head <= self._slots:
            raise self._corrupt(head, self._next)
        self._limit = head + self._slots
        return self._next != self._limit


class RingReader(_RingSide):
    """The reading side: `drain` copies messages out and frees their slots at once."""

    __slots__ = ("_iter_unpack", "_taken", "_unpack_from")

    def __init__(self, view: memoryview, message: Struct) -> None:
        super().__init__(view, message)
        self._iter_unpack = self._message.iter_unpack
        self._unpack_from = self._message.unpack_from
        self._taken: int = self._words[_HEAD]

    def is_empty(self) -> bool:
        """Whether nothing waits: one load."""
        return bool(self._words[_TAIL] == self._taken)

    def drain(self, limit: int = DRAIN_LIMIT) -> list[tuple[Any, ...]]:
        """At most `limit` messages, oldest first; an empty list when none waits.

        The slots are free for the writer when this returns. A reader killed inside has taken nothing.

        Raises:
            RingCorrupt: head and tail cannot be believed.
        """
        first = self._taken
        count = self._words[_TAIL] - first
        if count == 0:
            return []
        if not 0 < count <= self._slots:
            raise self._corrupt(first, first + count)
        slot = first & self._mask
        start = SLOTS_OFFSET + slot * SLOT_BYTES
        if count == 1:
            messages = [self._unpack_from(self._view, start)]
            self._taken = self._words[_HEAD] = first + 1
            return messages
        count = min(count, limit)
        beyond = slot + count - self._slots
        if beyond <= 0:
            messages = list(self._iter_unpack(self._view[start : start + count * SLOT_BYTES]))
        else:
            messages = list(self._iter_unpack(self._view[start:]))
            messages += self._iter_unpack(self._view[SLOTS_OFFSET : SLOTS_OFFSET + beyond * SLOT_BYTES])
        self._taken = self._words[_HEAD] = first + count
        return messages
