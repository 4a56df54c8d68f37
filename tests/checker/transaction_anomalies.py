"""What may not be in a history of transactions. Pure: a pass over it for each question, and a search for cycles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import Final

from tests.checker.anomalies import TOLD_OF_A_KIND, Anomaly
from tests.checker.dependency_graph import Graph
from tests.checker.transaction_history import (
    NOT_KNOWN,
    Copy,
    Outcome,
    Place,
    Sight,
    Transaction,
    TransactionHistory,
    index_of,
    transaction_of,
)

_NOTHING: Final = Sight()


def find(history: TransactionHistory) -> list[Anomaly]:
    """All of them, at most TOLD_OF_A_KIND from each question."""
    seen = _Visible(history)
    questions: list[Iterator[Anomaly]] = [
        _of_outcomes(history, seen),
        _of_fencing(history, seen),
        _of_cycles(history, seen),
        *(_of_place(history, place) for place in history.places),
        *(
            _of_reading(history, seen, reader, place, sights.get(place, _NOTHING))
            for reader, sights in history.readings.items()
            for place in history.places
        ),
        _of_reads(history, seen),
        *(_of_copy(history, copy) for copy in history.copies),
        _of_undecided(history),
    ]
    return [anomaly for question in questions for anomaly in islice(question, TOLD_OF_A_KIND)]


class _Visible:
    """Where committed records are at the end: `offsets[place][token]` → its first offset."""

    def __init__(self, history: TransactionHistory) -> None:
        self.tokens: Counter[int] = Counter()
        self.at: dict[int, tuple[Place, int]] = {}
        self.transactions: set[int] = set()
        """Numbers of those that have a visible record."""
        for place, sight in history.visible.items():
            for offset, token in zip(sight.offsets, sight.tokens, strict=True):
                self.tokens[token] += 1
                self.at.setdefault(token, (place, offset))
                if _known(history, token) is not None:
                    self.transactions.add(transaction_of(token))


def _known(history: TransactionHistory, token: int) -> Transaction | None:
    """The transaction that wrote it; None where nobody did."""
    number = transaction_of(token)
    if not 0 <= number < len(history.transactions):
        return None
    transaction = history.transactions[number]
    return transaction if index_of(token) < len(transaction.writes) else None


def _tokens(transaction: Transaction) -> range:
    first = transaction.number << 12
    return range(first, first + len(transaction.writes))


def _of_outcomes(history: TransactionHistory, seen: _Visible) -> Iterator[Anomaly]:
    """All of a committed transaction is visible, none of an aborted one, and all or none of an unknown one."""
    for each in history.transactions:
        tokens = _tokens(each)
        there = [token for token in tokens if token in seen.at]
        missing = [token for token in tokens if token not in seen.at]
        if each.outcome is Outcome.ABORTED:
            if there:
                yield Anomaly("G1a", f"{_where(there[0], seen)} of {each} is visible, {len(there)} in all")
                if missing:
                    yield Anomaly("torn", f"{len(there)} of {len(tokens)} records of {each} are visible")
        elif there and missing:
            write = each.writes[index_of(missing[0])]
            yield Anomaly(
                "torn",
                f"{len(there)} of {len(tokens)} records of {each} are visible; record {index_of(missing[0])}, "
                f"acknowledged at offset {write.offset} of {write.place}, is not",
            )
        elif each.outcome is Outcome.COMMITTED and missing:
            write = each.writes[0]
            yield Anomaly(
                "lost",
                f"no record of {each} is visible; the first was acknowledged at offset {write.offset} of {write.place}",
            )
        for token in there:
            write = each.writes[index_of(token)]
            if write.offset not in (NOT_KNOWN, seen.at[token][1]) and seen.tokens[token] == 1:
                yield Anomaly(
                    "moved",
                    f"{_where(token, seen)} of {each} was acknowledged at offset {write.offset} of {write.place}",
                )


def _where(token: int, seen: _Visible) -> str:
    place, offset = seen.at[token]
    return f"record {index_of(token)} at offset {offset} of {place}"


def _of_fencing(history: TransactionHistory, seen: _Visible) -> Iterator[Anomaly]:
    """Nothing that is first asked for after the next producer of the same transactional id was ready may commit."""
    for each in history.transactions:
        fenced_ns = history.fenced_ns.get((each.writer, each.life))
        if fenced_ns is None or (each.asked_ns is not None and each.asked_ns < fenced_ns):
            continue
        if each.outcome is Outcome.COMMITTED or each.number in seen.transactions:
            asked = "never asked" if each.asked_ns is None else "asked"
            yield Anomaly(
                "unfenced", f"{each} {asked} to commit before its successor was ready, and is committed"
            )


def _of_place(history: TransactionHistory, place: Place) -> Iterator[Anomaly]:
    """What is visible there, and what a read_uncommitted reader found."""
    sight = history.visible.get(place, _NOTHING)
    log = history.log.get(place, _NOTHING)
    logged = dict(zip(log.offsets, log.tokens, strict=True))
    first: dict[int, int] = {}
    newest: dict[int, int] = {}
    for offset, token in zip(sight.offsets, sight.tokens, strict=True):
        where = f"offset {offset} of {place}"
        transaction = _known(history, token)
        if transaction is None or transaction.writes[index_of(token)].place != place:
            yield Anomaly("phantom", f"token {token} at {where} was never written there")
            continue
        if logged.get(offset) != token:
            yield Anomaly(
                "inconsistent",
                f"a read_uncommitted reader found token {logged.get(offset)} at {where}, where {token} is visible",
            )
        if token in first:
            yield Anomaly(
                "duplicated", f"record {index_of(token)} of {transaction} is at {where} and at {first[token]}"
            )
        elif index_of(token) < newest.get(transaction.number, -1):
            yield Anomaly(
                "reordered",
                f"record {index_of(token)} of {transaction} at {where} is behind its record "
                f"{newest[transaction.number]}",
            )
        first.setdefault(token, offset)
        newest[transaction.number] = max(index_of(token), newest.get(transaction.number, -1))


def _of_reading(
    history: TransactionHistory, seen: _Visible, reader: str, place: Place, sight: Sight
) -> Iterator[Anomaly]:
    """What a read_committed reader was given, who began at the start and came to the end."""
    visible = history.visible.get(place, _NOTHING)
    there = dict(zip(visible.offsets, visible.tokens, strict=True))
    before = -1
    for offset, token, time_ns in zip(sight.offsets, sight.tokens, sight.times_ns, strict=True):
        where = f"offset {offset} of {place}"
        if offset <= before:
            yield Anomaly("went back", f"{reader} was given {where} after {before}")
        before = offset
        transaction = _known(history, token)
        if transaction is None:
            yield Anomaly("phantom", f"{reader} read token {token} at {where}, which nobody wrote")
            continue
        what = f"{reader} read record {index_of(token)} of {transaction} at {where}"
        if transaction.outcome is Outcome.ABORTED:
            yield Anomaly("G1a", what)
        elif transaction.asked_ns is None or time_ns < transaction.asked_ns:
            yield Anomaly("early read", f"{what} before its commit was asked for")
        if there.get(offset, token) != token:
            yield Anomaly("inconsistent", f"{what}, where token {there[offset]} is visible at the end")
        elif offset not in there and transaction.outcome is not Outcome.ABORTED:
            yield Anomaly("vanished", f"{what}, where nothing is visible at the end")
    yield from _unseen(history, reader, place, sight, there)


def _unseen(
    history: TransactionHistory, reader: str, place: Place, sight: Sight, there: Mapping[int, int]
) -> Iterator[Anomaly]:
    """Records that the reader passed: all of a transaction's there (unseen) or part of them (G1b)."""
    read = set(sight.offsets)
    last = max(read, default=-1)
    touched = {transaction_of(token) for token in sight.tokens}
    for offset, token in there.items():
        if offset in read:
            continue
        transaction = _known(history, token)
        did = "passed" if offset < last else "never came to"
        kind = "G1b" if transaction_of(token) in touched else "unseen"
        yield Anomaly(
            kind, f"{reader} {did} offset {offset} of {place}, record {index_of(token)} of {transaction}"
        )


def _of_reads(history: TransactionHistory, seen: _Visible) -> Iterator[Anomaly]:
    """What transactions themselves read, of other transactions."""
    for each in history.transactions:
        if each.ended_ns is None:
            continue
        for token in each.reads:
            other = _known(history, token)
            if other is None:
                yield Anomaly("phantom", f"{each} read token {token}, which nobody wrote")
            elif other.outcome is Outcome.ABORTED:
                yield Anomaly("G1a", f"{each} read record {index_of(token)} of {other}")
            elif token not in seen.at:
                yield Anomaly(
                    "vanished", f"{each} read record {index_of(token)} of {other}, which is not visible"
                )


def _of_cycles(history: TransactionHistory, seen: _Visible) -> Iterator[Anomaly]:
    graph = Graph()
    visible = [history.transactions[number] for number in sorted(seen.transactions)]
    _add_session_order(graph, visible)
    _add_real_time_order(graph, visible)
    for place in history.places:
        _add_write_order(graph, history, history.visible.get(place, _NOTHING))
    for each in visible:
        for token in each.reads:
            if token in seen.at and _known(history, token) is not None:
                graph.add(transaction_of(token), each.number, "wr")
    for kind, cycle in graph.cycles():
        steps = "".join(f"{history.transactions[number]} --{edge}-> " for number, edge in cycle)
        yield Anomaly(kind, f"{steps}the first")


def _add_session_order(graph: Graph, visible: Iterable[Transaction]) -> None:
    newest: dict[str, Transaction] = {}
    for each in sorted(visible, key=lambda one: (one.life, one.number)):
        if each.writer in newest:
            graph.add(newest[each.writer].number, each.number, "so")
        newest[each.writer] = each


def _add_real_time_order(graph: Graph, visible: list[Transaction]) -> None:
    """Edges from the last transactions that had ended when one began; those before them follow."""
    moments = [(each.began_ns, 1, each) for each in visible]
    moments += [
        (each.ended_ns, 0, each)
        for each in visible
        if each.ended_ns is not None and each.outcome is Outcome.COMMITTED
    ]
    frontier: set[int] = set()
    before: dict[int, set[int]] = {}
    for _, is_beginning, each in sorted(moments, key=lambda moment: moment[:2]):
        if is_beginning:
            before[each.number] = set(frontier)
            for number in frontier:
                graph.add(number, each.number, "rt")
        else:
            frontier -= before.get(each.number, set())
            frontier.add(each.number)


def _add_write_order(graph: Graph, history: TransactionHistory, sight: Sight) -> None:
    """Of one transactional id, and of transactions that did not overlap; Kafka lets the others interleave."""
    newest_of: dict[str, int] = {}
    latest: Transaction | None = None
    for token in sight.tokens:
        each = _known(history, token)
        if each is None:
            continue
        if each.writer in newest_of:
            graph.add(newest_of[each.writer], each.number, "ww")
        newest_of[each.writer] = each.number
        if latest is not None and each.ended_ns is not None and each.ended_ns < latest.began_ns:
            graph.add(latest.number, each.number, "ww")
        if latest is None or each.began_ns > latest.began_ns:
            latest = each


def _of_copy(history: TransactionHistory, copy: Copy) -> Iterator[Anomaly]:
    """Each record before the committed offset is copied once and in order, and none behind it."""
    for (group, place), committed in history.committed.items():
        if group != copy.group or place.topic != copy.source:
            continue
        source = history.visible.get(place, _NOTHING)
        target = history.visible.get(Place(copy.target, place.partition), _NOTHING)
        offset_of = dict(zip(source.tokens, source.offsets, strict=True))
        origins = [
            known.writes[index_of(token)].origin
            for token in target.tokens
            if (known := _known(history, token)) is not None
        ]
        copied = Counter(origins)
        for token, offset in offset_of.items():
            where = f"offset {offset} of {place}"
            if offset < committed and not copied[token]:
                yield Anomaly("lost", f"{group} committed offset {committed}, and {where} is not copied")
            elif offset >= committed and copied[token]:
                yield Anomaly("torn", f"{group} committed offset {committed}, and {where} is copied")
            elif copied[token] > 1:
                yield Anomaly("duplicated", f"{group} copied {where} {copied[token]} times")
        for token in copied:
            if token not in offset_of:
                yield Anomaly("phantom", f"{group} copied token {token}, which {place} does not have")
        offsets = [offset_of[token] for token in dict.fromkeys(origins) if token in offset_of]
        for first, second in pairwise(offsets):
            if second < first:
                yield Anomaly("reordered", f"{group} copied offset {second} of {place} behind {first}")


def _of_undecided(history: TransactionHistory) -> Iterator[Anomaly]:
    for place, (stable, high) in history.undecided.items():
        yield Anomaly(
            "hanging", f"the last stable offset of {place} stays at {stable}; its high watermark is {high}"
        )
