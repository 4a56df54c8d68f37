"""Answers that their owner holds until something has happened, and the deadlines of those that may wait too long.

    hold ─→ young ──(5 ms pass)──→ registered with the purgatory process ──(its timing wheel)──→ expired
              │                      │
              └── reached ───────────┴── reached, left, requester died: the owner answers and releases the registration

The owner completes: it is the first to know that the wait is over, so no answer takes a longer way. The purgatory only
says that time is up. An answer that leaves within GRACE_MS is never registered: holding it costs one queue entry.

| the purgatory process | who expires an answer, and when |
|---|---|
| is up | the purgatory, at the deadline |
| is down, or its ring is full, or REGISTERED_MAX are registered | the owner, at the deadline |
| is up and says nothing | the owner, OWN_BOUND_MS after the deadline |
| died | the owner, at the deadline; what still waits is registered with the next life |

A deadline within GRACE_MS is the owner's, too. So every answer leaves exactly once, whatever becomes of the purgatory.

Pure: time is handed in, registrations leave through a `Registrar`, the next look is set on an `Alarm`, and what leaves
is returned to the owner or handed to its `expired`. Source of the rule: Kafka's `DelayedOperation` (tryComplete before
it is watched, then the timer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

from appliance.clock import NS_PER_MS
from appliance.ipc.agent import NEVER_NS, Alarm

GRACE_MS: Final = 5
"""How long an answer is held before it is registered; the next look may come as much later again."""
OWN_BOUND_MS: Final = 100
"""How long after its deadline the owner expires an answer of which the purgatory says nothing."""
REGISTERED_MAX: Final = 1024
"""Registrations of one owner that the purgatory has not ended; each holds about 600 bytes there."""
LOOK_MAX_MS: Final = 60_000
"""The longest sleep until a look: deadlines are the client's to choose, and epoll takes no more than 2^31 ms."""

GRACE_NS: Final = GRACE_MS * NS_PER_MS
_OWN_BOUND_NS: Final = OWN_BOUND_MS * NS_PER_MS
_LOOK_MAX_NS: Final = LOOK_MAX_MS * NS_PER_MS
_IDENTITY_MASK: Final = (1 << 32) - 1

Key = TypeVar("Key")
Requester = TypeVar("Requester")
Answer = TypeVar("Answer")

Held = tuple[int, int, int, Requester, Answer]
"""Position that ends the wait, number in order of holding, deadline in ns, who asked, the answer."""

POSITION: Final = 0
NUMBER: Final = 1
DUE_NS: Final = 2
REQUESTER: Final = 3
ANSWER: Final = 4


class Registrar(Protocol):
    """The way to the purgatory process. Each registration is ended by it exactly once, or dies with it."""

    def register(self, identity: int, due_ns: int) -> bool:
        """Ask to be told when `due_ns` has come. False where the purgatory is down or its ring is full."""
        ...

    def release(self, identity: int) -> None:
        """The answer has left, so the registration is to end. Where it cannot be said, it ends at its deadline."""
        ...

    def publish(self) -> None:
        """Make what was asked visible, and wake the purgatory."""
        ...


_Entry = tuple["HeldAnswers[Any, Any, Any]", Any, tuple[int, int, int, Any, Any]]
"""One answer in its queue: holder, key, held."""


class Deadlines:
    """The deadlines of all answers that one process holds. Single-threaded.

    `alarm`: when the process is to call `turn`; NEVER_NS while nothing is held.
    `outstanding`: registrations that the purgatory has not ended; while there are some, it may say something.
    `registered`: answers that it expires, by the identity that they have there.
    `number`, `gone`: how many answers were ever held, and have left.
    """

    __slots__ = (
        "_bound_ns",
        "_considered",
        "_holders",
        "_mark",
        "_mark_ns",
        "_registrar",
        "alarm",
        "expired_by_owner",
        "expired_by_purgatory",
        "gone",
        "number",
        "outstanding",
        "registered",
        "registrations",
    )

    def __init__(self, registrar: Registrar, alarm: Alarm) -> None:
        self._registrar = registrar
        self.alarm = alarm
        self._holders: list[HeldAnswers[Any, Any, Any]] = []
        self.registered: dict[int, _Entry] = {}
        self.number = 0
        self.gone = 0
        # Answers up to `_considered` are registered, or wait for the owner's own bound. Those up to `_mark` were held
        # at `_mark_ns`.
        self._considered = 0
        self._mark = 0
        self._mark_ns = 0
        self._bound_ns = NEVER_NS
        self.outstanding = 0
        self.registrations = 0
        self.expired_by_purgatory = 0
        self.expired_by_owner = 0

    def add(self, holder: HeldAnswers[Any, Any, Any]) -> None:
        """Answers of `holder` have deadlines from now on."""
        self._holders.append(holder)

    def look_sooner(self, number: int, now_ns: int, due_ns: int) -> None:
        """Set the alarm for answer `number`, which is held from now on."""
        if self._considered == number - 1:
            # It is the first young one, so at the next look it has waited for GRACE_MS.
            self._mark, self._mark_ns = number, now_ns
        look_ns = now_ns + GRACE_NS
        self.alarm.due_ns = due_ns if due_ns < look_ns else look_ns

    def turn(self, now_ns: int) -> None:
        """Register what has waited for some milliseconds, and expire what nobody else expires."""
        late: list[_Entry] = []
        if now_ns >= self._bound_ns:
            self._pass_bounds(now_ns, late)
        look_ns = self._look_at_young(now_ns, late)
        self.alarm.due_ns = look_ns
        self._wake_for_bound(now_ns)
        if late:
            self.expired_by_owner += len(late)
            self._expire(late)

    def _wake_for_bound(self, now_ns: int) -> None:
        if self._bound_ns != NEVER_NS:
            self.alarm.due_ns = min(self.alarm.due_ns, self._bound_ns, now_ns + _LOOK_MAX_NS)

    def _pass_bounds(self, now_ns: int, late: list[_Entry]) -> None:
        """Find the answers whose own bound has passed, and the next bound. Seldom: it looks at all that wait."""
        bound_ns = NEVER_NS
        for holder in self._holders:
            for key, held in holder.up_to(self._considered):
                own_ns = self._own_bound_ns(held)
                if own_ns <= now_ns:
                    late.append((holder, key, held))
                elif own_ns < bound_ns:
                    bound_ns = own_ns
        self._bound_ns = bound_ns

    def _own_bound_ns(self, held: Held[Any, Any]) -> int:
        registered = self.registered.get(held[NUMBER] & _IDENTITY_MASK)
        is_registered = registered is not None and registered[2] is held
        return held[DUE_NS] + _OWN_BOUND_NS if is_registered else held[DUE_NS]

    def _look_at_young(self, now_ns: int, late: list[_Entry]) -> int:
        """Register those that were held GRACE_MS ago; return when to look at the rest again."""
        is_ripe = now_ns - self._mark_ns >= GRACE_NS
        up_to = self._mark if is_ripe else self._considered
        newest, registrations = self.number, self.registrations
        look_ns = NEVER_NS
        for holder in self._holders:
            for key, held in holder.after(self._considered):
                due_ns = held[DUE_NS]
                if due_ns <= now_ns:
                    late.append((holder, key, held))
                elif held[NUMBER] <= up_to:
                    self._register(holder, key, held)
                    self._bound_ns = min(self._bound_ns, self._own_bound_ns(held))
                else:
                    look_ns = min(look_ns, due_ns, now_ns + GRACE_NS)
        if look_ns == NEVER_NS:
            self._considered = newest
        elif is_ripe:
            self._considered = up_to
            self._mark, self._mark_ns = newest, now_ns
        if self.registrations != registrations:
            self._registrar.publish()
        return look_ns

    def _register(self, holder: HeldAnswers[Any, Any, Any], key: Any, held: Held[Any, Any]) -> None:
        identity = held[NUMBER] & _IDENTITY_MASK
        if self.outstanding >= REGISTERED_MAX or identity in self.registered:
            return
        if self._registrar.register(identity, held[DUE_NS]):
            self.registered[identity] = (holder, key, held)
            self.outstanding += 1
            self.registrations += 1

    def left(self, left: list[Held[Any, Any]]) -> None:
        """Note that their owner has taken these out; the purgatory forgets those that are registered."""
        self.gone += len(left)
        if self.gone == self.number:
            self.rest()
        if self.registered:
            self.release(left)

    def rest(self) -> None:
        """Nothing is held, so nobody has to wake up for it."""
        self._considered = self.number
        self._bound_ns = self.alarm.due_ns = NEVER_NS

    def release(self, left: list[Held[Any, Any]]) -> None:
        """Have the purgatory forget those of `left` that are registered."""
        released = False
        for held in left:
            identity = held[NUMBER] & _IDENTITY_MASK
            registered = self.registered.get(identity)
            if registered is not None and registered[2] is held:
                del self.registered[identity]
                self._registrar.release(identity)
                released = True
        if released:
            self._registrar.publish()

    def over(self, ended: Iterable[tuple[int, bool]]) -> None:
        """The purgatory has ended registrations: (identity, whether time was up), each once."""
        late: list[_Entry] = []
        for identity, is_expired in ended:
            self.outstanding -= 1
            if is_expired:
                registered = self.registered.pop(identity, None)
                if registered is not None:
                    late.append(registered)
        if late:
            self.expired_by_purgatory += len(late)
            self._expire(late)

    def _expire(self, late: list[_Entry]) -> None:
        queues: dict[tuple[HeldAnswers[Any, Any, Any], Any], set[int]] = {}
        for holder, key, held in late:
            queues.setdefault((holder, key), set()).add(held[NUMBER])
        for (holder, key), numbers in queues.items():
            holder.expire(key, numbers)

    def purgatory_down(self) -> None:
        """Its registrations died with it: from now on the owner expires what waits, at its deadline."""
        self.registered.clear()
        self.outstanding = 0
        # At the next turn it looks at all that wait.
        self._bound_ns = self.alarm.due_ns = 0

    def purgatory_up(self, now_ns: int) -> None:
        """Register what waits with the purgatory's next life."""
        self._considered = 0
        self._mark, self._mark_ns = self.number, now_ns
        self.alarm.due_ns = min(self.alarm.due_ns, now_ns + GRACE_NS)

    def statistics(self) -> dict[str, int]:
        """Registered now; since the start: registrations, and expired answers by who has ended the wait."""
        return {
            "registered": len(self.registered),
            "registrations": self.registrations,
            "expired_by_purgatory": self.expired_by_purgatory,
            "expired_by_owner": self.expired_by_owner,
        }


class HeldAnswers(Generic[Key, Requester, Answer]):
    """Answers of one kind, in one queue a key: a partition, a log. Single-threaded; its requesters bound it.

    Positions of a queue do not fall: who is held later waits for as much or more.

    Args:
        deadlines: None where a wait has no deadline.
        expired: answers one whose time is up; it has left its queue.
    """

    __slots__ = ("_deadlines", "_expired", "_queues")

    def __init__(
        self, deadlines: Deadlines | None, *, expired: Callable[[Key, Requester, Answer], None] | None
    ) -> None:
        self._deadlines = deadlines
        self._expired = expired
        self._queues: dict[Key, deque[Held[Requester, Answer]]] = {}
        if deadlines is not None:
            deadlines.add(self)

    def hold(
        self,
        key: Key,
        position: int,
        requester: Requester,
        answer: Answer,
        *,
        now_ns: int = 0,
        due_ns: int = NEVER_NS,
    ) -> None:
        """Keep `answer` until `key` has reached `position`, at most until `due_ns`."""
        number = 0
        deadlines = self._deadlines
        if deadlines is not None:
            number = deadlines.number = deadlines.number + 1
            alarm_ns = deadlines.alarm.due_ns
            if now_ns + GRACE_NS < alarm_ns or due_ns < alarm_ns:
                deadlines.look_sooner(number, now_ns, due_ns)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
        queue.append((position, number, due_ns, requester, answer))

    def waits(self, key: Key) -> bool:
        """Whether an answer of `key` is held."""
        return key in self._queues

    @property
    def keys(self) -> list[Key]:
        """Those with answers that are held."""
        return list(self._queues)

    def of(self, key: Key) -> int:
        """How many answers of `key` are held."""
        return len(self._queues.get(key, ()))

    def reached(self, key: Key, position: int) -> list[Held[Requester, Answer]]:
        """Take out and return the answers that wait for `position` or less, in the order of holding."""
        queue = self._queues.get(key)
        if queue is None or queue[0][POSITION] > position:
            return []
        left = [queue.popleft()]
        while queue and queue[0][POSITION] <= position:
            left.append(queue.popleft())
        if not queue:
            del self._queues[key]
        deadlines = self._deadlines
        if deadlines is not None:
            # As `Deadlines.left`, without the call.
            deadlines.gone = gone = deadlines.gone + len(left)
            if gone == deadlines.number:
                deadlines.rest()
            if deadlines.registered:
                deadlines.release(left)
        return left

    def leave(self, key: Key) -> list[Held[Requester, Answer]]:
        """Take out and return all answers of `key`: its owner serves it no longer."""
        left = list(self._queues.pop(key, ()))
        if self._deadlines is not None:
            self._deadlines.left(left)
        return left

    def take(self, key: Key, wanted: Callable[[Answer], bool]) -> list[Held[Requester, Answer]]:
        """Take out and return the answers of `key` that are `wanted`."""
        return self._split(key, lambda held: wanted(held[ANSWER]))

    def drop_requester(self, requester: Requester) -> None:
        """Drop what a process that died has asked for: its next generation must not get these answers."""
        for key in self.keys:
            self._split(key, lambda held: held[REQUESTER] == requester)

    def expire(self, key: Key, numbers: set[int]) -> None:
        """For `Deadlines`: these leave, because their time is up."""
        left = self._split(key, lambda held: held[NUMBER] in numbers)
        if self._expired is not None:
            for _, _, _, requester, answer in left:
                self._expired(key, requester, answer)

    def after(self, number: int) -> list[tuple[Key, Held[Requester, Answer]]]:
        """For `Deadlines`: what is held later than `number`. O(these and the keys)."""
        found: list[tuple[Key, Held[Requester, Answer]]] = []
        for key, queue in self._queues.items():
            for held in reversed(queue):
                if held[NUMBER] <= number:
                    break
                found.append((key, held))
        return found

    def up_to(self, number: int) -> list[tuple[Key, Held[Requester, Answer]]]:
        """For `Deadlines`: what is held, `number` or earlier."""
        found: list[tuple[Key, Held[Requester, Answer]]] = []
        for key, queue in self._queues.items():
            for held in queue:
                if held[NUMBER] > number:
                    break
                found.append((key, held))
        return found

    def _split(
        self, key: Key, leaves: Callable[[Held[Requester, Answer]], bool]
    ) -> list[Held[Requester, Answer]]:
        left: list[Held[Requester, Answer]] = []
        kept: deque[Held[Requester, Answer]] = deque()
        for held in self._queues.get(key, ()):
            (left if leaves(held) else kept).append(held)
        if left:
            if kept:
                self._queues[key] = kept
            else:
                del self._queues[key]
            if self._deadlines is not None:
                self._deadlines.left(left)
        return left

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))
