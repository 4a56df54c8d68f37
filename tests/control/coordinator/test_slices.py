"""Long work in slices: what is short is done at once, what is long makes nobody wait, and ends with who wanted it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from appliance.channels.roles import Role, RoleKind
from appliance.control.coordinator.request_queue import Reply
from appliance.control.coordinator.slices import (
    JOBS_MAX,
    SLICE_NS,
    TURN_NS,
    AnswerJob,
    Job,
    PiecesJob,
    Slices,
    StepJob,
)
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsResponse
from appliance.protocol.headers import RequestHeader
from appliance.protocol.messages import encode_response

NETPROC = Role(RoleKind.NETPROC, 0)
ELEMENT_NS = SLICE_NS // 10


class Work:
    """A clock that moves with each element of an answer, and what becomes of the answers."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.sent: list[tuple[bytes, list[Reply]]] = []
        self.dropped: list[Reply] = []
        self.failed: list[Exception] = []
        self.slices = Slices(lambda: self.now_ns, failed=lambda _, error: self.failed.append(error))
        self._numbers = count(1)

    def reply(self) -> Reply:
        number = next(self._numbers)
        header = RequestHeader(ApiKey.LIST_GROUPS, 4, number, None, 0)
        return Reply(
            NETPROC, 1, request_id=number, header=header, length_bytes=1, slot=0, host="", connection=number
        )

    def listing(self, groups: int, *replies: Reply) -> AnswerJob:
        return AnswerJob(
            list(replies),
            self.groups(groups),
            encode=encoded,
            send=lambda frame, whom: self.sent.append((frame, whom)),
            drop=self.dropped.append,
            monotonic_ns=lambda: self.now_ns,
        )

    def groups(self, number: int) -> Iterator[ListedGroup]:
        for each in range(number):
            self.now_ns += ELEMENT_NS
            yield ListedGroup(f"g{each}", "consumer", group_state="Stable")

    def turn(self, *waiting: Job) -> None:
        """A turn of the coordinator, with jobs that begin in it."""
        left = list(waiting)

        def next_job() -> bool:
            if left:
                self.slices.begin(left.pop(0))
                return True
            return False

        self.slices.run(next_job)

    def turns(self) -> int:
        """Turns until everything is done; how many."""
        for turns in count():
            if not len(self.slices):
                return turns
            self.turn()
        raise AssertionError


def encoded(groups: tuple[Any, ...]) -> bytes:
    return encode_response(ApiKey.LIST_GROUPS, 4, ListGroupsResponse(groups=groups), 1)


def listed(number: int) -> bytes:
    return encoded(tuple(Work().groups(number)))


def test_answer_that_took_many_slices_is_the_answer() -> None:
    work = Work()
    reply = work.reply()
    work.slices.begin(work.listing(1_000, reply))
    assert work.turns() > 10
    assert work.sent == [(listed(1_000), [reply])]


def test_turn_is_over_in_its_time_however_much_is_to_be_done() -> None:
    work = Work()
    for _ in range(20):
        work.slices.begin(work.listing(1_000, work.reply()))
    work.turn()
    assert work.now_ns <= TURN_NS + SLICE_NS


def test_what_begins_and_is_short_is_done_at_once() -> None:
    work = Work()
    short = work.reply()
    for _ in range(20):
        work.slices.begin(work.listing(1_000, work.reply()))
    work.turn()
    work.turn(work.listing(3, short))
    assert work.sent == [(listed(3), [short])]


def test_long_answers_go_on_in_turns() -> None:
    work = Work()
    first, second = work.reply(), work.reply()
    work.slices.later(work.listing(1_000, first))
    work.slices.later(work.listing(100, second))
    work.turns()
    assert [whom for _, whom in work.sent] == [[second], [first]]


def test_work_for_nobody_ends() -> None:
    work = Work()
    first, second = work.reply(), work.reply()
    work.slices.begin(work.listing(1_000, first, second))
    work.turn()
    work.slices.closed(first.key)
    work.turn()
    assert (len(work.slices), work.dropped) == (1, [first])
    work.slices.closed(second.key)
    before_ns = work.now_ns
    work.turn()
    assert (len(work.slices), work.dropped) == (0, [first, second])
    assert work.now_ns == before_ns
    assert work.sent == []


def test_who_stays_gets_the_answer_that_another_left() -> None:
    work = Work()
    first, second = work.reply(), work.reply()
    work.slices.begin(work.listing(100, first, second))
    work.turn()
    work.slices.closed(first.key)
    work.turns()
    assert work.sent == [(listed(100), [second])]


def test_step_is_done_whoever_left() -> None:
    work = Work()
    done: list[int] = []
    work.slices.later(StepJob(lambda: done.append(1)))
    work.slices.closed(work.reply().key)
    work.turn()
    assert done == [1]


def test_no_more_jobs_begin_than_may_be_under_way() -> None:
    work = Work()
    for _ in range(JOBS_MAX):
        work.slices.begin(work.listing(1_000, work.reply()))
    work.turn(work.listing(1, work.reply()))
    assert len(work.slices) == JOBS_MAX
    assert work.sent == []


def test_job_that_fails_ends_alone() -> None:
    def fails() -> None:
        raise ValueError("a defect")

    work = Work()
    reply = work.reply()
    work.slices.later(StepJob(fails))
    work.slices.later(work.listing(3, reply))
    work.turns()
    assert [str(error) for error in work.failed] == ["a defect"]
    assert work.sent == [(listed(3), [reply])]


def test_work_in_pieces_goes_on_in_its_next_slice_where_the_time_is_over() -> None:
    work = Work()
    done: list[int] = []

    def steps() -> Iterator[None]:
        for each in range(35):
            work.now_ns += ELEMENT_NS
            done.append(each)
            yield None

    job = PiecesJob(steps(), lambda: work.now_ns)
    assert not job.run(work.now_ns + SLICE_NS)
    assert len(done) == 10
    work.slices.later(job)
    assert work.turns() == 2
    assert done == list(range(35))
