"""Loading a partition: its log is read from the log start to the log end, and each record given to its state machine.

Up to the log end and not only to the high watermark: what was acknowledged lies below the end, and after a change of
leaders the watermark may still be behind it. The load is complete when the replicas have caught up.

Where an append of our own was under way when the load began, it may come into the log after its end was looked at.
Reads go behind it on the same ring, so what they do not find is not there: such a load reads on until nothing comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from appliance.control.coordinator.runtime.state_machine import StateMachine
from appliance.errors import CorruptFile, MalformedFrame
from appliance.partition_access.access import PartitionAccess, Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode

LOOK_AGAIN_MS: Final = 50


class Loaded(Protocol):
    """What is loaded: a shard."""

    def is_loading(self, life: int) -> bool:
        """Whether the load that began in that life goes on."""
        ...

    def load_ended(self, end_offset: int) -> None:
        """Everything was replayed."""
        ...

    def load_failed(self, why: object) -> None:
        """The log cannot be replayed, and trying again would not help."""
        ...

    def load_again(self, why: str) -> None:
        """The log could not be read now: try again after a pause."""
        ...

    def later(self, delay_ms: int, action: Callable[[], None]) -> None: ...


class Loading:
    """A load under way: reads from `offset` until `target`, the log end when it began, has been replayed."""

    __slots__ = (
        "_access",
        "_block_replay",
        "_decompressed_bytes_max",
        "_life",
        "_machine",
        "_offset",
        "_place",
        "_shard",
        "_target",
        "_until_nothing",
    )

    def __init__(
        self,
        shard: Loaded,
        machine: StateMachine,
        access: PartitionAccess,
        place: LogPlace,
        *,
        life: int,
        offset: int,
        target: int,
        until_nothing: bool,
        decompressed_bytes_max: int,
    ) -> None:
        self._shard = shard
        self._machine = machine
        self._access = access
        self._place = place
        self._life = life
        self._offset = offset
        self._target = target
        self._until_nothing = until_nothing
        self._decompressed_bytes_max = decompressed_bytes_max
        self._block_replay = machine.block_replay()

    def go_on(self) -> None:
        """Read on, now or when there is room on the ring."""
        shard = self._shard
        if not shard.is_loading(self._life):
            return
        if self._offset >= self._target and not self._until_nothing:
            shard.load_ended(max(self._offset, self._target))
        elif not self._access.read(self._place, self._offset, self._read):
            shard.later(LOOK_AGAIN_MS, self.go_on)

    def _read(self, read: Read) -> None:
        shard = self._shard
        if not shard.is_loading(self._life):
            return
        if read.replaced:
            self.go_on()
        elif read.error == ErrorCode.OFFSET_OUT_OF_RANGE and read.log_start > self._offset:
            self._offset = read.log_start
            self.go_on()
        elif read.error:
            shard.load_again(read.why or ErrorCode(read.error).name)
        elif read.chunks:
            try:
                self._replay(read)
            except (CorruptFile, MalformedFrame) as fault:
                shard.load_failed(fault)
                return
            self.go_on()
        elif read.high_watermark >= self._target:
            # Compaction has left nothing behind the last batch.
            self._offset = max(self._offset, self._target)
            self._until_nothing = False
            self.go_on()
        else:
            shard.later(LOOK_AGAIN_MS, self.go_on)

    def _replay(self, read: Read) -> None:
        # It takes numpy, which is loaded with the first record (decision 0053).
        from appliance.control.coordinator.runtime.replay import replay_chunk

        for chunk in read.chunks:
            replay_chunk(
                chunk,
                self._machine,
                self._block_replay,
                path=read.path,
                from_offset=self._offset,
                decompressed_bytes_max=self._decompressed_bytes_max,
            )
            self._offset = max(self._offset, chunk.batches[-1].last_offset + 1)
