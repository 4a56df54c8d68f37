"""Which topics there are, and which have come and gone since somebody looked.

A subscription by regular expression has to be held against the topics whenever they change, and matching ten thousand
names takes 30 ms. So who has looked before is told the difference: a topic that comes costs each expression one match.

    version   1          2                 3
    came      a b c      d                 -
    went      -          -                 b
    since(1) = ({d}, {b});  since(3) = nothing;  since(0), or too long ago = None: look at all of them
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from appliance.control.coordinator.group.effects import Topics

CHANGES_KEPT: Final = 100
NAMES_KEPT: Final = 10_000
"""Of all changes that are kept together."""


class Difference(NamedTuple):
    """Names that are there now and were not; names that were there and are not."""

    came: frozenset[str]
    went: frozenset[str]


class TopicNames:
    """`version` grows when a name comes or goes, and not when anything else of a topic changes."""

    __slots__ = ("_changes", "_is_old", "_names", "_topics", "version")

    def __init__(self, topics: Topics) -> None:
        self.version = 0
        self._topics = topics
        self._is_old = True
        self._names: frozenset[str] = frozenset()
        self._changes: deque[Difference] = deque()
        """The last one leads to `version`."""

    def changed(self) -> None:
        """There is another metadata image; it is looked at when somebody asks."""
        self._is_old = True

    def all(self) -> frozenset[str]:
        """The names of now."""
        if self._is_old:
            self._is_old = False
            names = frozenset(self._topics.names())
            if names != self._names:
                self._note(Difference(names - self._names, self._names - names))
                self._names = names
        return self._names

    def since(self, version: int) -> Difference | None:
        """What has changed since `version`; None where that is not known any more."""
        self.all()
        count = self.version - version
        if not 0 <= count <= len(self._changes):
            return None
        came: set[str] = set()
        went: set[str] = set()
        for change in list(self._changes)[len(self._changes) - count :]:
            came = (came - change.went) | change.came
            went = (went - change.came) | change.went
        return Difference(frozenset(came), frozenset(went))

    def _note(self, change: Difference) -> None:
        self.version += 1
        self._changes.append(change)
        while len(self._changes) > CHANGES_KEPT or sum(map(_size, self._changes)) > NAMES_KEPT:
            self._changes.popleft()


def _size(change: Difference) -> int:
    return len(change.came) + len(change.went)
