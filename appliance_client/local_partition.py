"""A partition of this host as its directories say: which copy counts, and how far it may be read."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance_client.errors import CorruptRecordsError, error_of
from appliance_client.local_copy import NOTHING, Copy, Moved
from appliance_client.local_state import State
from appliance_client.spare_memory import SpareMemory

QUIET_S: Final = 0.25
"""So soon a partition is looked at again that is in the middle of something, or of which nothing can be heard."""
IDLE_S: Final = 10.0
"""So late one that says nothing and would be heard: events of the kernel can be trusted, and this costs nothing."""
_PATIENCE_S: Final = 2.0
_BEHIND_READS: Final = 8
_NO_ID: Final = UUID(int=0)


class Watching(Protocol):
    """Where the directories of a partition are, and who is told of them: `local_logs.LocalLogs`."""

    memory: SpareMemory

    def homes(self) -> list[str]: ...

    @property
    def hears_names(self) -> bool: ...

    def watch(self, path: str) -> bool: ...

    def forget(self, path: str) -> None: ...


class LocalAnswer(NamedTuple):
    """Whole batches from an offset on, or why there are none. `error_code` is Kafka's, 0 for none.

    `aborted` has (producer id, first offset) of aborted transactions among them, for who reads committed records.
    """

    records: memoryview
    aborted: Sequence[tuple[int, int]]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    error_code: int = 0
    quiet_s: float = QUIET_S
    """When to look again if nothing is heard."""
    leader_epoch: int = -1
    """The epoch of the leader whose log these are of, -1 where it is not known."""
    topic_id: UUID | None = None
    life: tuple[str, int] = ("", -1)
    """The directory, and its incarnation: another one when its log has lost records that could be read."""


class LocalPartition:
    """A partition as its directories say. Not for several threads at a time."""

    def __init__(self, logs: Watching, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._logs = logs
        self._copies: dict[str, Copy] = {}
        self._chosen: Copy | None = None
        self.must_look = True
        """A directory may have come or gone."""
        self._look_again_s = 0.0
        self._is_heard = False
        self._is_another = False
        """Its directories are those of another topic of the name than was asked for, where there is none of that."""
        self._behind = 0
        self._odd_since_s: float | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def read(
        self,
        offset: int,
        *,
        topic_id: UUID | None = None,
        bytes_max: int = 1 << 20,
        committed: bool = False,
        leader_epoch: int = -1,
    ) -> LocalAnswer:
        """Whole batches from the one that has `offset` on, none of them beyond what may be read.

        At least one batch where there is one; then up to `bytes_max`. Checksums are the caller's to check.
        `leader_epoch` is that of the leader with whose log everything before `offset` is known to agree. Under a newer
        one the answer is FENCED_LEADER_EPOCH, because the new leader's log may differ before `offset`.

        Raises:
            CorruptRecordsError: the files are no log.
            BrokerError: this user may not read them.
        """
        try:
            return self._read(offset, topic_id, bytes_max, committed, leader_epoch)
        except (Moved, FileNotFoundError, NotADirectoryError):
            self._forget()
            return self._none(None)
        except CorruptRecordsError as error:
            self._forget()
            raise CorruptRecordsError(f"{self.name}: {error}") from error
        except PermissionError as error:
            raise error_of(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{self.name}: {error.filename}: {error.strerror}"
            ) from error
        except OSError as error:
            raise error_of(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {error}") from error

    def _read(
        self, offset: int, topic_id: UUID | None, bytes_max: int, committed: bool, leader_epoch: int
    ) -> LocalAnswer:
        copy, state = self._choose(offset, topic_id, committed)
        if copy is None or state is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if self._is_another else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return self._none(None, code)
        if 0 <= leader_epoch != state.leader_epoch:
            # An older one: who leads now has not written its state yet.
            newer = state.leader_epoch > leader_epoch
            return self._none(state, ErrorCode.FENCED_LEADER_EPOCH if newer else 0)
        if offset < state.log_start:
            return self._none(state, ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > state.log_end:
            # The state may be older than what told of the offset, but not for long. Only a leader can say that there
            # is no such offset: a follower may have lost the end of its log, which the leader has.
            if not state.leads:
                self._odd_since_s = None
                return self._none(state)
            if copy.state_file.wait():
                return self._read(offset, topic_id, bytes_max, committed, leader_epoch)
            return self._none(state, ErrorCode.OFFSET_OUT_OF_RANGE if self._is_odd() else 0)
        end = state.last_stable if committed else state.high_watermark
        if offset >= end:
            self._odd_since_s = None
            self._behind = 0
            if copy.state_file.wait():
                return self._read(offset, topic_id, bytes_max, committed, leader_epoch)
            return self._none(state, is_settled=self._is_heard and state.leads)
        records, attributes = copy.read(offset, end, bytes_max, state)
        if copy.segment is not None and copy.segment.next_offset < end:
            # Who is behind knows that there is more, and need not be told of each record.
            self._behind += 1
            if self._behind == _BEHIND_READS:
                copy.state_file.rest()
        aborted: list[tuple[int, int]] = []
        if records and committed and attributes & b.TRANSACTIONAL:
            assert copy.segment is not None
            aborted = copy.aborted(offset, copy.segment.next_offset)
        after = copy.state()
        if after is None or (after.topic_id, after.incarnation) != (state.topic_id, state.incarnation):
            raise Moved
        self._odd_since_s = None
        return LocalAnswer(
            records,
            aborted,
            state.high_watermark,
            state.last_stable,
            state.log_start,
            leader_epoch=state.leader_epoch,
            topic_id=state.topic_id,
            life=(copy.directory, state.incarnation),
        )

    def agrees(self, offset: int, epoch: int) -> int | None:
        """The leader epoch of a copy that has, before `offset`, the records that were read: the last one of `epoch`.

        -1 where it has others or none there, None where that cannot be told now. By the log matching property: two
        logs that have an offset of the same leader epoch are alike up to there. Where compaction or retention has
        removed the record before `offset`, the epochs of its neighbours must allow it.
        """
        try:
            copy, state = self._choose(offset, None, committed=False)
            if copy is None or state is None:
                return None
            found = -1
            if offset <= state.log_start:
                found = state.leader_epoch
            elif offset <= state.log_end:
                before, is_covered = copy.epoch_before(offset)
                if before == epoch or (before < epoch and not is_covered):
                    found = state.leader_epoch
            after = copy.state()
            if after is None or after[1:5] != state[1:5]:
                return None
            return None if found < 0 and not state.leads else found
        except (Moved, OSError):
            self._forget()
            return None

    def _choose(
        self, offset: int, topic_id: UUID | None, committed: bool
    ) -> tuple[Copy | None, State | None]:
        """The copy to read, and its state: the leader's, or else the one that may be read furthest."""

        def is_asked_for(state: State) -> bool:
            return topic_id is None or state.topic_id in (topic_id, _NO_ID)

        if self.must_look or time.monotonic() >= self._look_again_s:
            self._look()
        found = [(each, state) for each in self._copies.values() if (state := each.state()) is not None]
        if len(found) < len(self._copies):
            self.must_look = True  # one was not whole yet, or has gone
        self._is_another = bool(found)
        found = [each for each in found if is_asked_for(each[1])]
        if not found:
            self.must_look = True
            return None, None
        latest = max(state.leader_epoch for _, state in found)

        def rank(each: tuple[Copy, State]) -> tuple[bool, int, int]:
            state = each[1]
            return state.leads and state.leader_epoch == latest, state.high_watermark, state.leader_epoch

        copy, state = max(found, key=rank)
        if copy is not self._chosen:
            self._forget()
        self._chosen = copy
        return copy, state

    def _look(self) -> None:
        self.must_look = False
        homes = self._logs.homes()
        self._is_heard = self._logs.hears_names
        seen = set()
        for home in homes:
            directory = f"{home}/{self.name}"
            try:
                os.stat(directory)
            except (FileNotFoundError, NotADirectoryError):
                continue
            seen.add(directory)
            if directory not in self._copies:
                self._copies[directory] = Copy(directory, self._logs.memory)
            # The file may be another one by now, or not have been there before.
            if not self._logs.watch(f"{directory}/.state"):
                self._is_heard = False
        for gone in self._copies.keys() - seen:
            self._logs.forget(f"{gone}/.state")
            copy = self._copies.pop(gone)
            copy.close()
            if copy is self._chosen:
                self._chosen = None
        self._look_again_s = time.monotonic() + (IDLE_S if self._is_heard else QUIET_S)

    def _is_odd(self) -> bool:
        now_s = time.monotonic()
        if self._odd_since_s is None:
            self._odd_since_s = now_s
        return now_s - self._odd_since_s > _PATIENCE_S

    def _none(self, state: State | None, code: int = 0, *, is_settled: bool = False) -> LocalAnswer:
        quiet_s = IDLE_S if is_settled else QUIET_S
        if state is None:
            return LocalAnswer(NOTHING, (), -1, -1, -1, code, quiet_s)
        return LocalAnswer(
            NOTHING,
            (),
            state.high_watermark,
            state.last_stable,
            state.log_start,
            code,
            quiet_s,
            state.leader_epoch,
        )

    def rest(self) -> None:
        """Nobody reads on for now: the owner need not hurry."""
        if self._chosen is not None:
            self._chosen.state_file.rest()

    def _forget(self) -> None:
        if self._chosen is not None:
            self._chosen.drop()
            self._chosen.state_file.rest()
            self._chosen = None

    def close(self) -> None:
        for directory, copy in self._copies.items():
            self._logs.forget(f"{directory}/.state")
            copy.close()
        self._copies.clear()
        self._chosen = None
