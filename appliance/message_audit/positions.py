"""How far the audit has counted, as JSON: a record of kind `positions` in `__audit`, and the snapshots beside it.

    {"v": 1, "kind": "positions",
     "partitions": {"<topic id>:<partition>": {
         "begin": 0, "next": 4711,                          counted from the first offset up to the second
         "groups": {"billing": [4700, 4711, 93, 1764…]},    counted below, committed, where and when the commit was
         "sources": {"orders-7": [1042, [[1000, 1001]]]}}}, the expected id, and what is missing
     "commits": {"12": 94},                                 partition of __consumer_offsets → read below
     "observed": 55}                                        read below, in __observations

A trace has `traced` beside them, and no `sources`: the traced records of which more may be seen.

In `__audit` a record has what has changed in its round, in `__audit_state` a snapshot has all, in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from appliance.message_audit.entry import Kind
from appliance.message_audit.record_ids import Source, Sources

VERSION: Final = 1
GROUPS_MAX: Final = 1_000
"""Groups of a partition. Further ones are not counted: one that was forgotten would be counted from the beginning."""
PIECE_PARTITIONS: Final = 50
PIECE_BYTES: Final = 1 << 20
"""Of a piece, or one partition, which never has more than a batch takes."""

UNCHANGED: Final = -1
"""In what a round has changed: `observed` has not."""

PartitionKey = tuple[UUID, int]


@dataclass(slots=True)
class GroupPosition:
    """`counted`: its records below this offset are counted. `committed`, `at`, `at_ms`: its last commit, the offset of
    this commit in its partition of `__consumer_offsets`, and its time.
    """

    counted: int
    committed: int
    at: int
    at_ms: int


class Traced(NamedTuple):
    """A traced record of which more may be seen. `producer_id`: of its open transaction, else -1; `appended_ms`: -1 if
    nobody has seen when.
    """

    trace: str
    parent: str
    producer_id: int
    appended_ms: int


@dataclass(slots=True)
class PartitionPosition:
    """`begin`: where the audit, or the trace, of the partition began. `traced`: offset → record in
    ascending order, of a trace only.
    """

    begin: int = 0
    next: int = 0
    groups: dict[str, GroupPosition] = field(default_factory=dict)
    sources: Sources = field(default_factory=dict)
    traced: dict[int, Traced] = field(default_factory=dict)


@dataclass(slots=True)
class Positions:
    """Everything that the audit keeps beside its counts."""

    partitions: dict[PartitionKey, PartitionPosition] = field(default_factory=dict)
    commits: dict[int, int] = field(default_factory=dict)
    observed: int = 0

    def update(self, changed: Positions) -> None:
        """Take over what has changed."""
        self.partitions.update(changed.partitions)
        self.commits.update(changed.commits)
        if changed.observed != UNCHANGED:
            self.observed = changed.observed


class _Partition(msgspec.Struct, omit_defaults=True):
    begin: int
    next: int
    groups: dict[str, tuple[int, int, int, int]] = {}
    sources: dict[str, tuple[int, list[tuple[int, int]]]] = {}
    traced: dict[str, Traced] = {}


class _Positions(msgspec.Struct, kw_only=True):
    v: int
    kind: str
    partitions: dict[str, _Partition] = {}
    commits: dict[str, int] = {}
    observed: int = 0
    audit: str = ""
    replay_from: int = 0
    snapshot: int = 0
    piece: int = 0
    pieces: int = 0


_decoder: Final = msgspec.json.Decoder(_Positions)


@dataclass(frozen=True, slots=True)
class Piece:
    """One record of a snapshot. `audit_id`: the topic id of `__audit` whose records from `replay_from` follow it."""

    audit_id: str
    replay_from: int
    snapshot: int
    piece: int
    pieces: int
    positions: Positions


def encode(positions: Positions) -> bytes:
    """Return the value of a record of kind `positions`."""
    return msgspec.json.encode(_packed(positions))


def encode_snapshot(
    positions: Positions, *, audit_id: str, replay_from: int, snapshot: int
) -> Iterator[bytes]:
    """Return the values of a snapshot's records, in order. `snapshot`: its number, higher than any before."""
    pieces: list[list[PartitionKey]] = [[]]
    size_bytes = 0
    for key, position in positions.partitions.items():
        own_bytes = len(encode(Positions({key: position}, observed=UNCHANGED)))
        if pieces[-1] and (size_bytes + own_bytes > PIECE_BYTES or len(pieces[-1]) >= PIECE_PARTITIONS):
            pieces.append([])
            size_bytes = 0
        pieces[-1].append(key)
        size_bytes += own_bytes
    for number, some in enumerate(pieces):
        part = Positions({key: positions.partitions[key] for key in some}, observed=UNCHANGED)
        if number == 0:
            part.commits, part.observed = positions.commits, positions.observed
        packed = _packed(part)
        packed.audit, packed.replay_from = audit_id, replay_from
        packed.snapshot, packed.piece, packed.pieces = snapshot, number, len(pieces)
        yield msgspec.json.encode(packed)


def decode(value: bytes | None) -> Positions | None:
    """Return what a record of kind `positions` says; None if it is none."""
    packed = _decoded(value)
    return None if packed is None else _unpacked(packed)


def decode_piece(value: bytes | None) -> Piece | None:
    """Return one record of a snapshot; None if it is none."""
    packed = _decoded(value)
    if packed is None or packed.pieces < 1:
        return None
    return Piece(
        packed.audit, packed.replay_from, packed.snapshot, packed.piece, packed.pieces, _unpacked(packed)
    )


def last_snapshot(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces of the last snapshot that is whole; none if there is none."""
    by_number: dict[int, dict[int, Piece]] = {}
    for piece in pieces:
        by_number.setdefault(piece.snapshot, {})[piece.piece] = piece
    whole = [number for number, some in by_number.items() if len(some) == next(iter(some.values())).pieces]
    return list(by_number[max(whole)].values()) if whole else []


def _decoded(value: bytes | None) -> _Positions | None:
    try:
        packed = _decoder.decode(value or b"")
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return packed if packed.v == VERSION and packed.kind == Kind.POSITIONS else None


def _packed(positions: Positions) -> _Positions:
    return _Positions(
        v=VERSION,
        kind=Kind.POSITIONS.value,
        partitions={
            f"{topic_id}:{partition}": _Partition(
                each.begin,
                each.next,
                {
                    name: (group.counted, group.committed, group.at, group.at_ms)
                    for name, group in each.groups.items()
                },
                {name: (source.expected, source.gaps) for name, source in each.sources.items()},
                {str(offset): record for offset, record in each.traced.items()},
            )
            for (topic_id, partition), each in positions.partitions.items()
        },
        commits={str(partition): offset for partition, offset in positions.commits.items()},
        observed=positions.observed,
    )


def _unpacked(packed: _Positions) -> Positions:
    positions = Positions(observed=packed.observed)
    for name, each in packed.partitions.items():
        topic_id, _, partition = name.partition(":")
        try:
            key = UUID(topic_id), int(partition)
        except ValueError:
            continue
        positions.partitions[key] = PartitionPosition(
            each.begin,
            each.next,
            {name: GroupPosition(*group) for name, group in each.groups.items()},
            {name: Source(expected, gaps) for name, (expected, gaps) in each.sources.items()},
            {int(offset): record for offset, record in each.traced.items() if offset.isdigit()},
        )
    positions.commits = {
        int(partition): offset for partition, offset in packed.commits.items() if partition.isdigit()
    }
    return positions
