"""What network processes have seen of observed topics: the value of a record in `__observations`, as JSON.

    {"v": 1,
     "produced": [[topic id, partition, first offset, end offset, first ms, last ms, client id, principal], …],
     "fetched":  [[topic id, partition, first offset, end offset, ms, client id, principal, most bytes], …],
     "lost": 0}

A range has the offsets from the first one up to the end, without the end. `produced`: who appended them, and when the
leader had done so. `fetched`: who has read them, as its next fetch shows. A client that seeks has not read up to the
end: an answer has the most bytes at most, or one batch. `lost`: so many ranges were dropped, because
there were too many. Nothing here is counted: counts come from the logs, and a range that a death has taken only leaves
a name out.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

import msgspec

VERSION: Final = 1
NAME_LENGTH_MAX: Final = 255


class Produced(NamedTuple):
    topic_id: UUID
    partition: int
    first: int
    end: int
    first_ms: int
    last_ms: int
    client: str
    principal: str


class Fetched(NamedTuple):
    topic_id: UUID
    partition: int
    first: int
    end: int
    at_ms: int
    client: str
    principal: str
    bytes_max: int = 0
    """0: nobody has said."""


class Observation(msgspec.Struct):
    v: int = VERSION
    produced: list[Produced] = []
    fetched: list[Fetched] = []
    lost: int = 0


_decoder: Final = msgspec.json.Decoder(Observation)


def encode(observation: Observation) -> bytes:
    """Return the value of the record."""
    return msgspec.json.encode(observation)


def decode(value: bytes | None) -> Observation | None:
    """Return what a record says; None if it is no such JSON, or of another version."""
    try:
        observation = _decoder.decode(value or b"")
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return observation if observation.v == VERSION else None


def short(name: str) -> str:
    """Return a name of a client, cut to NAME_LENGTH_MAX characters."""
    return name if len(name) <= NAME_LENGTH_MAX else name[: NAME_LENGTH_MAX - 1] + "…"
