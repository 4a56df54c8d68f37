"""Each anomaly is found in a history of transactions that has it, and nothing in one that has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.checker.dependency_graph import Graph
from tests.checker.transaction_anomalies import find
from tests.checker.transaction_history import (
    Copy,
    Outcome,
    Place,
    Sight,
    Transaction,
    TransactionHistory,
    Write,
    token_of,
)

A, B = Place("t", 0), Place("t", 1)
COPIED = Place("c", 0)
READERS = ("librdkafka", "kafka-python")


class Story:
    """A history told step by step; one nanosecond goes by at each step."""

    def __init__(self) -> None:
        self.history = TransactionHistory((A, B, COPIED), copies=(Copy("g", "t", "c"),))
        self.now_ns = 0
        self._ends = dict.fromkeys(self.history.places, 0)
        self.sights: list[dict[Place, Sight]] = [{place: Sight() for place in self._ends} for _ in range(4)]
        self.history.log, self.history.visible = self.sights[:2]
        self.history.readings = dict(zip(READERS, self.sights[2:], strict=True))

    def tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def begin(self, writer: str = "w", life: int = 0, reads: tuple[int, ...] = ()) -> Transaction:
        new = self.history.begin(writer, life, reads)
        new.began_ns = self.tick()
        return new

    def write(self, transaction: Transaction, place: Place, *, origin: int = -1) -> int:
        """The token; its offset is the partition's next."""
        offset = self._ends[place]
        self._ends[place] += 1
        transaction.writes.append(Write(place, offset, origin))
        self.tick()
        return token_of(transaction.number, len(transaction.writes) - 1)

    def end(
        self, transaction: Transaction, outcome: Outcome = Outcome.COMMITTED, *, shown: bool = True
    ) -> None:
        """It ends; with `shown` its records are visible from now on, unless it is aborted. A marker follows."""
        if outcome is not Outcome.ABORTED:
            transaction.asked_ns = self.tick()
        transaction.outcome = outcome
        transaction.ended_ns = self.tick()
        for index, write in enumerate(transaction.writes):
            token = token_of(transaction.number, index)
            put(self.history.log[write.place], write.offset, token, self.now_ns)
            if shown and outcome is not Outcome.ABORTED:
                for sights in self.sights[1:]:
                    put(sights[write.place], write.offset, token, self.now_ns)
        for place in {write.place for write in transaction.writes}:
            self._ends[place] += 1

    def kinds(self) -> set[str]:
        return {anomaly.kind for anomaly in find(self.history)}


def put(sight: Sight, offset: int, token: int, time_ns: int) -> None:
    """Kept in the order of offsets, as the reader of a log sees them."""
    at = sum(each < offset for each in sight.offsets)
    for column, value in ((sight.offsets, offset), (sight.tokens, token), (sight.times_ns, time_ns)):
        column.insert(at, value)


def take(sight: Sight, index: int) -> None:
    for column in (sight.offsets, sight.tokens, sight.times_ns):
        del column[index]


def swap(sight: Sight, first: int, second: int) -> None:
    sight.tokens[first], sight.tokens[second] = sight.tokens[second], sight.tokens[first]


def sound() -> Story:
    """Commits, an abort, one whose end nobody knows of each kind, a fenced one, and a copy.

    `t-0` holds at offsets 0, 1 transaction 0, at 3 an aborted one, at 5 to 9 others.
    """
    story = Story()
    first = story.begin()
    for place in (A, A, B):
        story.write(first, place)
    story.end(first)  # t-0: 0, 1; t-1: 0
    aborted = story.begin()
    story.write(aborted, A)
    story.write(aborted, B)
    story.end(aborted, Outcome.ABORTED)
    for shown in (True, False):
        unknown = story.begin("v")
        story.write(unknown, A)
        story.write(unknown, B)
        story.end(unknown, Outcome.UNKNOWN, shown=shown)
    fenced = story.begin("w", 0)
    story.write(fenced, A)
    story.history.fenced_ns["w", 0] = story.tick()
    later = story.begin("w", 1, reads=(token_of(0, 0), token_of(2, 0)))
    story.write(later, A)
    story.write(later, B)
    story.end(later)
    story.end(fenced, Outcome.ABORTED)
    copying = story.begin("copier")
    for origin in (token_of(0, 0), token_of(0, 1)):
        story.write(copying, COPIED, origin=origin)
        copying.reads.append(origin)
    story.end(copying)
    story.history.committed = {("g", A): 2, ("g", B): 0}
    return story


def tear(story: Story) -> None:
    for sights in story.sights[1:]:
        take(sights[B], 0)


def tear_unknown(story: Story) -> None:
    for sights in story.sights[1:]:
        take(sights[B], 1)


def show_half_of_an_unknown_one(story: Story) -> None:
    write = story.history.transactions[3].writes[0]
    for sights in story.sights[1:]:
        put(sights[write.place], write.offset, token_of(3, 0), story.now_ns)


def lose(story: Story) -> None:
    for sights in story.sights[1:]:
        take(sights[COPIED], 1)
        take(sights[COPIED], 0)


def show_aborted(story: Story) -> None:
    for index, write in enumerate(story.history.transactions[1].writes):
        for sights in story.sights[1:]:
            put(sights[write.place], write.offset, token_of(1, index), story.now_ns)


def show_part_of_an_aborted_one(story: Story) -> None:
    write = story.history.transactions[1].writes[0]
    for sights in story.sights[1:]:
        put(sights[write.place], write.offset, token_of(1, 0), story.now_ns)


def let_one_reader_read_aborted(story: Story) -> None:
    write = story.history.transactions[1].writes[0]
    put(story.history.readings["librdkafka"][A], write.offset, token_of(1, 0), story.now_ns)


def let_a_transaction_read_aborted(story: Story) -> None:
    story.history.transactions[5].reads.append(token_of(1, 0))


def let_a_transaction_read_what_is_gone(story: Story) -> None:
    story.history.transactions[5].reads.append(token_of(3, 0))


def duplicate(story: Story) -> None:
    for sights in story.sights:
        put(sights[A], 90, token_of(0, 0), story.now_ns)


def move(story: Story) -> None:
    story.history.transactions[0].writes[2].offset = 77


def reorder(story: Story) -> None:
    for sights in story.sights:
        at = [list(sights[A].offsets).index(offset) for offset in (0, 1)]
        swap(sights[A], *at)


def invent(story: Story) -> None:
    for sights in story.sights:
        put(sights[A], 90, token_of(1000, 0), story.now_ns)


def put_in_another_partition(story: Story) -> None:
    for sights in story.sights:
        put(sights[COPIED], 90, token_of(0, 0), story.now_ns)


def disagree(story: Story) -> None:
    story.history.readings["librdkafka"][A].tokens[0] = token_of(5, 0)


def disagree_with_the_log(story: Story) -> None:
    story.history.log[B].tokens[0] = token_of(5, 1)


def vanish(story: Story) -> None:
    write = story.history.transactions[3].writes[0]
    put(story.history.readings["kafka-python"][A], write.offset, token_of(3, 0), story.now_ns)


def go_back(story: Story) -> None:
    reading = story.history.readings["librdkafka"][A]
    for column in (reading.offsets, reading.tokens, reading.times_ns):
        column.append(column[0])


def pass_a_transaction(story: Story) -> None:
    reading = story.history.readings["librdkafka"][A]
    take(reading, 1)
    take(reading, 0)


def never_come_to_the_end(story: Story) -> None:
    reading = story.history.readings["librdkafka"][A]
    take(reading, len(reading.offsets) - 1)


def read_half(story: Story) -> None:
    take(story.history.readings["kafka-python"][A], 1)


def read_early(story: Story) -> None:
    asked_ns = story.history.transactions[0].asked_ns
    assert asked_ns is not None
    story.history.readings["librdkafka"][A].times_ns[0] = asked_ns - 1


def commit_after_the_successor(story: Story) -> None:
    fenced = story.history.transactions[4]
    fenced.asked_ns = story.tick()
    fenced.outcome = Outcome.COMMITTED


def show_what_its_successor_fenced(story: Story) -> None:
    write = story.history.transactions[4].writes[0]
    for sights in story.sights[1:]:
        put(sights[write.place], write.offset, token_of(4, 0), story.now_ns)


def write_behind_ones_successor(story: Story) -> None:
    """A commit that was asked for in time, and whose record is behind the next life's."""
    story.history.transactions[0].writes.append(Write(A, 95))
    for sights in story.sights:
        put(sights[A], 95, token_of(0, 3), story.now_ns)


def write_before_what_had_ended(story: Story) -> None:
    """Of two transactional ids: who began after the other's end wrote in front of it."""
    late = story.begin("x")
    story.write(late, B)
    story.end(late)
    for sights in story.sights:
        take(sights[B], len(sights[B].offsets) - 1)
        take(sights[B], 0)
        put(sights[B], 0, token_of(late.number, 0), story.now_ns)
        put(sights[B], 90, token_of(0, 2), story.now_ns)
    story.history.transactions[0].writes[2].offset = 90
    late.writes[0].offset = 0


def read_each_other(story: Story) -> None:
    one, other = story.begin("x"), story.begin("y")
    one.reads.append(story.write(other, B))
    other.reads.append(story.write(one, B))
    story.end(one)
    story.end(other)


def read_from_the_future(story: Story) -> None:
    story.history.transactions[0].reads.append(token_of(5, 0))


def forget_to_copy(story: Story) -> None:
    story.history.committed["g", A] = 6


def copy_beyond_the_offset(story: Story) -> None:
    story.history.committed["g", A] = 1


def copy_twice(story: Story) -> None:
    again = story.begin("copier")
    story.write(again, COPIED, origin=token_of(0, 1))
    story.end(again)


def copy_in_another_order(story: Story) -> None:
    first, second = story.history.transactions[6].writes
    first.origin, second.origin = second.origin, first.origin


def copy_what_is_not_there(story: Story) -> None:
    again = story.begin("copier")
    story.write(again, COPIED, origin=token_of(1, 0))
    story.end(again)


def hang(story: Story) -> None:
    story.history.undecided[A] = (3, 10)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (tear, "torn"),
        (tear_unknown, "torn"),
        (show_half_of_an_unknown_one, "torn"),
        (show_part_of_an_aborted_one, "torn"),
        (copy_beyond_the_offset, "torn"),
        (lose, "lost"),
        (forget_to_copy, "lost"),
        (show_aborted, "G1a"),
        (let_one_reader_read_aborted, "G1a"),
        (let_a_transaction_read_aborted, "G1a"),
        (let_a_transaction_read_what_is_gone, "vanished"),
        (vanish, "vanished"),
        (duplicate, "duplicated"),
        (copy_twice, "duplicated"),
        (move, "moved"),
        (reorder, "reordered"),
        (copy_in_another_order, "reordered"),
        (invent, "phantom"),
        (put_in_another_partition, "phantom"),
        (copy_what_is_not_there, "phantom"),
        (disagree, "inconsistent"),
        (disagree_with_the_log, "inconsistent"),
        (go_back, "went back"),
        (pass_a_transaction, "unseen"),
        (never_come_to_the_end, "unseen"),
        (read_half, "G1b"),
        (read_early, "early read"),
        (commit_after_the_successor, "unfenced"),
        (show_what_its_successor_fenced, "unfenced"),
        (write_behind_ones_successor, "G0"),
        (write_before_what_had_ended, "G0"),
        (read_each_other, "G1c"),
        (read_from_the_future, "G1c"),
        (hang, "hanging"),
    ],
)
def test_an_anomaly_is_found_in_a_history_that_has_it(wrong: Callable[[Story], None], kind: str) -> None:
    story = sound()
    assert story.kinds() == set(), "a sound history has none"
    wrong(story)
    assert kind in story.kinds()


def test_an_unknown_end_may_be_a_commit_or_an_abort() -> None:
    story = sound()
    shown = {number for number in (2, 3) if token_of(number, 0) in story.history.visible[A].tokens}
    assert shown == {2}
    assert find(story.history) == []


def test_transactions_of_two_ids_may_write_in_opposite_orders_while_both_are_open() -> None:
    story = sound()
    one, other = story.begin("x"), story.begin("y")
    for first, second, place in ((one, other, A), (other, one, B)):
        story.write(first, place)
        story.write(second, place)
    story.end(one)
    story.end(other)
    assert find(story.history) == []


def test_the_shortest_cycle_is_told_with_its_edges() -> None:
    graph = Graph()
    for before, after, kind in ((1, 2, "ww"), (2, 3, "rt"), (3, 1, "ww"), (3, 4, "so"), (4, 1, "wr")):
        graph.add(before, after, kind)
    (first_kind, first), (second_kind, second) = graph.cycles()
    assert (first_kind, sorted(first)) == ("G0", [(1, "ww"), (2, "rt"), (3, "ww")])
    assert (second_kind, second) == ("G1c", [(4, "wr"), (1, "ww"), (2, "rt"), (3, "so")])


def test_a_long_chain_without_a_cycle_has_none() -> None:
    graph = Graph()
    for number in range(20_000):
        graph.add(number, number + 1, "ww")
        graph.add(number, number + 2, "wr")
    assert list(graph.cycles()) == []
    graph.add(20_000, 0, "rt")
    assert [kind for kind, _ in graph.cycles()] == ["G0", "G1c"]
