"""Cycles in a graph of transactions: Adya's G0 and G1c, as Jepsen's Elle finds them.

An edge a → b says that b comes after a:

    ww   b wrote behind a in a partition
    wr   b read what a wrote
    so   b is a later transaction of the same transactional id
    rt   b began after a's end was answered

`so` and `rt` are the order that clients saw. A cycle of ww, so and rt is G0. One with a wr edge is G1c.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

WRITES: Final = frozenset({"ww", "so", "rt"})
READS: Final = WRITES | {"wr"}
SEARCHES_MAX: Final = 20
"""In a component: a cycle is enough for the report, and a component may be the whole history."""

Edges = Mapping[int, Mapping[int, str]]
"""From → to → kind."""


class Graph:
    """Filled by `add`, in any order."""

    def __init__(self) -> None:
        self._edges: dict[int, dict[int, set[str]]] = {}

    def add(self, before: int, after: int, kind: str) -> None:
        if before != after:
            self._edges.setdefault(before, {}).setdefault(after, set()).add(kind)

    def cycles(self) -> Iterator[tuple[str, list[tuple[int, str]]]]:
        """(`G0` or `G1c`, the cycle as pairs of a transaction and the edge that leaves it), one a component."""
        for component in _components(self._limited(WRITES)):
            yield "G0", self._shortest(component, self._limited(WRITES))
        edges = self._limited(READS)
        for component in _components(edges):
            found = self._shortest_with_read(component, edges)
            if found is not None:
                yield "G1c", found

    def _limited(self, kinds: frozenset[str]) -> dict[int, dict[int, str]]:
        return {
            before: {after: min(each & kinds) for after, each in targets.items() if each & kinds}
            for before, targets in self._edges.items()
        }

    def _shortest(self, component: set[int], edges: Edges) -> list[tuple[int, str]]:
        cycles = [_path(edges, each, each, component) for each in sorted(component)[:SEARCHES_MAX]]
        return min((each for each in cycles if each), key=len)

    def _shortest_with_read(self, component: set[int], edges: Edges) -> list[tuple[int, str]] | None:
        """The shortest cycle with a wr edge; None where the component has no such edge."""
        reads = (
            (before, after)
            for before in sorted(component)
            for after, kinds in self._edges.get(before, {}).items()
            if after in component and "wr" in kinds
        )
        found = [
            [(before, "wr"), *_path(edges, after, before, component)]
            for before, after in islice(reads, SEARCHES_MAX)
        ]
        return min(found, key=len, default=None)


def _path(edges: Edges, first: int, last: int, within: set[int]) -> list[tuple[int, str]]:
    """The shortest way from `first` to `last` with at least one edge; empty where there is none."""
    came: dict[int, tuple[int, str]] = {}
    queue = deque([first])
    while queue:
        node = queue.popleft()
        for after, kind in edges.get(node, {}).items():
            if after not in within or after in came:
                continue
            came[after] = (node, kind)
            if after == last:
                return _way(came, first, last)
            queue.append(after)
    return []


def _way(came: Mapping[int, tuple[int, str]], first: int, last: int) -> list[tuple[int, str]]:
    steps = [came[last]]
    while steps[-1][0] != first:
        steps.append(came[steps[-1][0]])
    return steps[::-1]


def _components(edges: Edges) -> list[set[int]]:
    """Strongly connected components of more than one node (Tarjan), without recursion."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[set[int]] = []
    for root in edges:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(edges.get(root, {})))]
        while work:
            node, targets = work[-1]
            for after in targets:
                if after not in number:
                    number[after] = low[after] = len(number)
                    stack.append(after)
                    on_stack.add(after)
                    work.append((after, iter(edges.get(after, {}))))
                    break
                if after in on_stack:
                    low[node] = min(low[node], number[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component: set[int] = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        found.append(component)
    return found
