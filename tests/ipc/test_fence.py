"""The store-buffering litmus test, in the form in which the rooms above meet it: announce, then check.

The steps of `full_fence` are written into the loop between the store and the load, where a call would hide by its own
length what they are there to prevent: with nothing in their place this machine shows a few reorderings in each run.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Callable

import pytest

from appliance.ipc import fence
from appliance.ipc.fence import full_fence

from .conftest import Fork, MakeRegion

ROUNDS = 300_000

Side = Callable[[memoryview, memoryview, int], None]

# Two words that are announced and two that keep the sides in step, each on a cache line of its own.
SIDE = """
def side(words, seen, me):
    mine, other, turn, turn_other = ((0, 16, 32, 48), (16, 0, 48, 32))[me]
    for number in range(1, len(seen) + 1):
        words[turn] = number
        spins = 0
        while words[turn_other] < number:
            spins += 1
            if spins > 2000:
                sched_yield()
        words[mine] = number
        {fence}
        found = words[other]
        seen[number - 1] = found >= number
"""


def side_with(steps: str) -> Side:
    scope: dict[str, object] = dict(vars(fence), sched_yield=os.sched_yield)
    exec(SIDE.format(fence=textwrap.indent(steps, " " * 8).strip()), scope)
    made = scope["side"]
    assert callable(made)
    return made


def steps_of_the_fence() -> str:
    [function] = ast.parse(inspect.getsource(full_fence)).body
    assert isinstance(function, ast.FunctionDef)
    return "\n".join(ast.unparse(step) for step in function.body[1:])


def missed_each_other(steps: str, make_region: MakeRegion, fork: Fork) -> int:
    """In how many rounds neither of two processes saw what the other had announced before."""
    side = side_with(steps)
    region = make_region(4096 + 2 * ROUNDS).view
    words, first, second = region[:512].cast("Q"), region[4096 : 4096 + ROUNDS], region[4096 + ROUNDS :]
    allowed = os.sched_getaffinity(0)
    one, *others = sorted(allowed)

    def on(processor: int, seen: memoryview, me: int) -> None:
        os.sched_setaffinity(0, {processor})
        side(words, seen, me)

    child = fork(lambda: on(others[0] if others else one, second, 1))
    try:
        on(one, first, 0)
    finally:
        os.sched_setaffinity(0, allowed)
    assert child.join() == 0
    return sum(not a and not b for a, b in zip(first, second, strict=True))


@pytest.mark.interpreted
def test_with_the_fence_one_of_two_always_sees_the_other(make_region: MakeRegion, fork: Fork) -> None:
    assert missed_each_other(steps_of_the_fence(), make_region, fork) == 0


def test_fence_leaves_its_lock_free() -> None:
    for _ in range(1000):
        full_fence()
