"""Transactions with a log in memory: what is appended, which markers are on their way, what clients were answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.control.coordinator.runtime.effects import Record
from appliance.control.coordinator.transaction.effects import (
    After,
    Append,
    TransactionEffects,
    WriteMarkers,
)
from appliance.control.coordinator.transaction.transaction_record import read_transaction_record
from appliance.control.coordinator.transaction.transactions import Transactions, TransactionSettings
from appliance.protocol.errors import ErrorCode

HOUR_MS = 3_600_000
SETTINGS = TransactionSettings(timeout_max_ms=HOUR_MS, id_expiration_ms=24 * HOUR_MS, ids_max=1_000)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class ProducerIdBlock:
    """Producer ids from 1,000 on; `is_empty` is the time in which the next block is on its way."""

    def __init__(self) -> None:
        self._next = itertools.count(1_000)
        self.is_empty = False

    def take(self) -> int | None:
        return None if self.is_empty else next(self._next)


class Scene:
    """A coordinator of one partition of `__transaction_state`, leader epoch 5 at first."""

    def __init__(self, settings: TransactionSettings = SETTINGS) -> None:
        self.settings = settings
        self.clock = ManualClock()
        self.ids = ProducerIdBlock()
        self.log: list[Record] = []
        self.leader_epoch = 5
        self.appends: list[Append] = []
        self.markers: list[WriteMarkers] = []
        self.delayed: list[After] = []
        self.transactions = self._new()
        self.carry_out(self.transactions.loaded(0, self.leader_epoch))

    def _new(self) -> Transactions:
        return Transactions(self.settings, self.clock, self.ids, partition_of=lambda _: 0)

    def carry_out(self, effects: TransactionEffects) -> None:
        for effect in effects:
            match effect:
                case Append():
                    self.appends.append(effect)
                case WriteMarkers():
                    self.markers.append(effect)
                case After():
                    self.delayed.append(effect)

    # ── what the parts around it do ───────────────────────────────────────────────────────────────────────

    def commit(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The oldest append is committed, or fails."""
        append = self.appends.pop(0)
        if not error:
            self.log += append.records
        self.carry_out(append.then(error))

    def mark(self) -> WriteMarkers:
        """Every partition takes the oldest marker."""
        marker = self.markers.pop(0)
        self.carry_out(marker.then())
        return marker

    def settle(self) -> None:
        """Everything that is under way ends well."""
        while self.appends or self.markers or self.delayed:
            if self.appends:
                self.commit()
            elif self.markers:
                self.mark()
            else:
                self.carry_out(self.delayed.pop(0).then())

    def crash(self) -> None:
        """The coordinator dies; the next one replays what is committed. Nothing that was under way happens."""
        self.appends, self.markers, self.delayed = [], [], []
        self.leader_epoch += 1
        self.transactions = self._new()
        for record in self.log:
            read = read_transaction_record(record.key, record.value)
            assert read is not None
            self.transactions.replay(0, *read)
        self.carry_out(self.transactions.loaded(0, self.leader_epoch))

    # ── what clients do; each returns the list in which the answer will stand ──────────────────────────────

    def initialize(
        self,
        transactional_id: str = "t",
        *,
        expected: tuple[int, int] | None = None,
        timeout_ms: int = 60_000,
    ) -> list[tuple[ErrorCode, int, int]]:
        answers, then = _kept()
        self.carry_out(
            self.transactions.initialize(
                transactional_id, timeout_ms=timeout_ms, expected=expected, then=then
            )
        )
        return answers

    def producer(self, transactional_id: str = "t", *, timeout_ms: int = 60_000) -> tuple[int, int]:
        """A producer that has its id and epoch."""
        answers = self.initialize(transactional_id, timeout_ms=timeout_ms)
        self.settle()
        ((error, producer_id, epoch),) = answers
        assert error is ErrorCode.NONE
        return producer_id, epoch

    def add(
        self,
        producer: tuple[int, int],
        *partitions: TopicPartition,
        transactional_id: str = "t",
        client_version: int = 2,
    ) -> list[ErrorCode]:
        answers: list[ErrorCode] = []

        def then(error: ErrorCode) -> TransactionEffects:
            answers.append(error)
            return []

        self.carry_out(
            self.transactions.add_partitions(
                transactional_id,
                *producer,
                frozenset(partitions),
                client_version=client_version,
                then=then,
            )
        )
        return answers

    def end(
        self,
        producer: tuple[int, int],
        *,
        commit: bool,
        transactional_id: str = "t",
        client_version: int = 2,
    ) -> list[tuple[ErrorCode, int, int]]:
        answers, then = _kept()
        self.carry_out(
            self.transactions.end(
                transactional_id, *producer, commit=commit, client_version=client_version, then=then
            )
        )
        return answers

    def opened(
        self, *, client_version: int = 2, transactional_id: str = "t", timeout_ms: int = 60_000
    ) -> tuple[int, int]:
        """A producer with an open transaction on a-0 and a-1."""
        producer = self.producer(transactional_id, timeout_ms=timeout_ms)
        answers = self.add(producer, A0, A1, transactional_id=transactional_id, client_version=client_version)
        self.settle()
        assert answers == [ErrorCode.NONE]
        return producer


def _kept() -> tuple[list[tuple[ErrorCode, int, int]], Callable[[ErrorCode, int, int], TransactionEffects]]:
    answers: list[tuple[ErrorCode, int, int]] = []

    def then(error: ErrorCode, producer_id: int, epoch: int) -> TransactionEffects:
        answers.append((error, producer_id, epoch))
        return []

    return answers, then
