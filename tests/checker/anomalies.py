"""What may not be in a history. Pure: a pass over it for each question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tests.checker.history import NOT_KNOWN, History, Reading, producer_of, sequence_of, shown, token_of
from tests.checker.values import key_of

TOLD_OF_A_KIND: Final = 20


@dataclass(frozen=True, slots=True)
class Anomaly:
    """`kind` is a word of the README's table."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def find(history: History) -> list[Anomaly]:
    """All of them, at most TOLD_OF_A_KIND from each question."""
    logs = [_by_offset(reading) for reading in history.log]
    may_miss = [_MayMiss(history, partition) for partition in range(history.partitions)]
    questions = [_of_acknowledgements(history, logs, may_miss)]
    for partition, log in enumerate(logs):
        questions.append(_of_log(history, partition))
        questions.append(_of_backlog(history, partition, log=log, may_miss=may_miss[partition]))
        for reader, readings in enumerate(history.readings):
            questions.append(
                _of_reading(f"reader {reader}", readings[partition], partition=partition, log=log)
            )
    return [anomaly for question in questions for anomaly in islice(question, TOLD_OF_A_KIND)]


def _by_offset(reading: Reading) -> dict[int, int]:
    return dict(zip(reading.offsets, reading.tokens, strict=True))


class _MayMiss:
    """Which records of a partition need not be in its log at the end."""

    def __init__(self, history: History, partition: int) -> None:
        self._start = history.starts[partition]
        self._partitions, self._keys = history.partitions, history.keys
        self._newest: dict[int, int] = {}
        if self._keys:
            log = history.log[partition]
            self._newest = {
                self._key_of(token): offset for offset, token in zip(log.offsets, log.tokens, strict=True)
            }

    def _key_of(self, token: int) -> int:
        return key_of(token, partitions=self._partitions, keys=self._keys)

    def at(self, offset: int, token: int) -> bool:
        """It was deleted with all before it, or the log has a later record of its key."""
        if offset < self._start:
            return True
        if not self._keys:
            return False
        # Of a record that nobody has ever read, compaction may have been the cause.
        return token == NOT_KNOWN or self._newest.get(self._key_of(token), -1) > offset


def _of_acknowledgements(
    history: History, logs: list[dict[int, int]], may_miss: list[_MayMiss]
) -> Iterator[Anomaly]:
    found = [{token: offset for offset, token in log.items()} for log in logs]
    for producer, offsets in enumerate(history.acknowledged):
        for sequence, offset in enumerate(offsets):
            partition, token = sequence % history.partitions, token_of(producer, sequence)
            if offset == NOT_KNOWN or logs[partition].get(offset) == token:
                continue
            where = f"{shown(token)}, acknowledged at offset {offset} of partition {partition},"
            if offset not in logs[partition] and may_miss[partition].at(offset, token):
                continue
            if token in found[partition]:
                yield Anomaly("moved", f"{where} is at {found[partition][token]}")
            else:
                yield Anomaly("lost", f"{where} is not in the log")


def _of_log(history: History, partition: int) -> Iterator[Anomaly]:
    log = history.log[partition]
    offset_of: dict[int, int] = {}
    newest: dict[int, int] = {}
    for offset, token in zip(log.offsets, log.tokens, strict=True):
        producer, sequence = producer_of(token), sequence_of(token)
        where = f"{shown(token)} at offset {offset} of partition {partition}"
        was_sent = producer < len(history.acknowledged) and sequence < len(history.acknowledged[producer])
        if not was_sent or sequence % history.partitions != partition:
            yield Anomaly("phantom", f"{where} was never sent there")
            continue
        if token in offset_of:
            yield Anomaly("duplicated", f"{where} is at {offset_of[token]} as well")
        elif sequence < newest.get(producer, -1):
            yield Anomaly("reordered", f"{where} is behind its record {newest[producer]}")
        offset_of.setdefault(token, offset)
        newest[producer] = max(sequence, newest.get(producer, -1))


def _of_backlog(
    history: History, partition: int, *, log: dict[int, int], may_miss: _MayMiss
) -> Iterator[Anomaly]:
    """What was read of it while faults went on, beside what is there at the end."""
    backlog = history.backlogs[partition]
    for kind, text in backlog.wrong:
        yield Anomaly(kind, f"{text}, in partition {partition}")
    for offset, token in enumerate(backlog.tokens):
        where = f"a reader of the backlog read {shown(token)} at offset {offset} of partition {partition},"
        if token == NOT_KNOWN or log.get(offset) == token:
            continue
        if offset in log:
            yield Anomaly("inconsistent", f"{where} where {shown(log[offset])} is")
        elif not may_miss.at(offset, token):
            yield Anomaly("vanished", f"{where} where nothing is")
    for (first, last), reader in backlog.passed.items():
        for offset in range(max(first, history.starts[partition]), last + 1):
            known = backlog.tokens[offset] if offset < len(backlog.tokens) else NOT_KNOWN
            # Each replica is compacted for itself: what one has let go of, the next leader may still have.
            if not may_miss.at(offset, log.get(offset, known)):
                yield Anomaly(
                    "unseen", f"{reader} passed offset {offset} of {first} to {last} of partition {partition}"
                )
                break


def _of_reading(reader: str, reading: Reading, *, partition: int, log: dict[int, int]) -> Iterator[Anomaly]:
    before = -1
    for offset, token in zip(reading.offsets, reading.tokens, strict=True):
        where = f"offset {offset} of partition {partition}"
        if offset <= before:
            yield Anomaly("went back", f"{reader} was given {where} after {before}")
        elif offset not in log:
            yield Anomaly("vanished", f"{shown(token)}, which {reader} read at {where}, is not in the log")
        elif log[offset] != token:
            there = shown(log[offset])
            yield Anomaly("inconsistent", f"{reader} read {shown(token)} at {where}, where {there} is")
        before = offset
    seen = set(reading.offsets)
    last_seen = max(seen, default=-1)
    for first, last in _runs(offset for offset in sorted(log) if offset not in seen):
        did = "passed" if first < last_seen else "never came to"
        yield Anomaly("unseen", f"{reader} {did} offsets {first} to {last} of partition {partition}")


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbours together: 1 2 3 7 8 → (1, 3), (7, 8)."""
    first = last = -1
    for offset in offsets:
        if first >= 0 and offset != last + 1:
            yield first, last
            first = -1
        first, last = (offset if first < 0 else first), offset
    if first >= 0:
        yield first, last
