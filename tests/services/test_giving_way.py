from __future__ import annotations

from appliance.clock import NS_PER_MS
from appliance.services.giving_way import PATIENCE_S, REST_MS_MAX, RESTS, GivingWay, ran_and_waited


class Machine:
    """What the kernel and the clock say."""

    def __init__(self) -> None:
        self.now_ns = self.ran_ns = self.waited_ns = 0
        self.way = GivingWay(lambda: self.now_ns, lambda: (self.ran_ns, self.waited_ns))

    def work(self, ran_ms: float, waited_ms: float) -> int:
        """Work for so long, and rest; return how long it rested."""
        self.ran_ns += int(ran_ms * NS_PER_MS)
        self.waited_ns += int(waited_ms * NS_PER_MS)
        rest_ms = self.way.rest_ms()
        self.now_ns += int((ran_ms + waited_ms + rest_ms) * NS_PER_MS)
        return rest_ms


def test_nothing_rests_while_nobody_else_wants_to_run() -> None:
    machine = Machine()
    assert [machine.work(4, waited_ms) for waited_ms in (0, 0.5, 1)] == [0, 0, 0]


def test_beside_others_the_work_has_a_fortieth_of_a_core_and_half_when_it_stays_behind() -> None:
    machine = Machine()
    rests = []
    while machine.now_ns < PATIENCE_S * 1_000 * NS_PER_MS:
        rests.append(machine.work(4, 3))
    assert set(rests) == {4 * RESTS}
    assert machine.work(4, 3) == 4
    machine.way.caught_up()
    assert machine.work(4, 3) == 4 * RESTS
    assert machine.work(1_000, 1_000) == REST_MS_MAX, "a process that was stopped does not sleep for minutes"


def test_small_steps_add_up_and_a_kernel_that_says_nothing_stops_nobody() -> None:
    machine = Machine()
    assert [machine.work(0.4, 0.4) for _ in range(3)] == [0, 0, int(1.2 * RESTS)]
    assert GivingWay(lambda: 0, lambda: (0, 0)).rest_ms() == 0


def test_the_kernel_says_how_long_this_process_has_run() -> None:
    before, _ = ran_and_waited()
    sum(range(300_000))
    after, waited = ran_and_waited()
    assert after > before > 0
    assert waited >= 0
