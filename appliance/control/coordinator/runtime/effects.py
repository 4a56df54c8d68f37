"""What a state machine wants done: values that the runtime carries out, in the order in which they stand.

A state machine answers no client, writes no log and waits for nothing. Each call returns its effects:

    Answer(reply, response)          once per request, now or in a later call's effects
    AnswerInPieces(reply, elements, make)
                                     the same for an answer that may be long: the runtime takes an element at a time
                                     and does other work in between
    GoOn(action)                     after other work the runtime calls `action`, which returns further effects
    Append(partition, records, then) the records go to that partition of the machine's topic as one batch; when the
                                     batch is committed, or has failed, the runtime calls `then`, which returns further
                                     effects; with a producer they are part of its transaction

The state does not change with the `Append` but in `then`, or in `StateMachine.apply`, because only then the records are
committed. So a crash before that changes nothing that anybody has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec


class Record(msgspec.Struct, frozen=True):
    """A record of an internal topic: key and value as they lie in its log; a tombstone has no value."""

    key: bytes
    value: bytes | None


class Client(msgspec.Struct, frozen=True):
    """Who sent a request, and how.

    `host` is its address as Kafka writes it, `/127.0.0.1`; `slot` the one it spoke to.
    """

    client_id: str
    host: str
    slot: int
    api_version: int


class Answer(msgspec.Struct, frozen=True):
    """The response to the request that came with `reply`: a shape of `appliance.protocol.apis`."""

    reply: Any
    response: Any


class AnswerInPieces(msgspec.Struct, frozen=True):
    """The response to the request that came with `reply`: `make(elements)`, whose array may be long.

    The state may change between two elements, so the iterator looks each one up when its turn comes.
    """

    reply: Any
    elements: Iterator[Any]
    make: Callable[[tuple[Any, ...]], Any]


class GoOn(msgspec.Struct, frozen=True):
    """A request that goes on after others had their turn."""

    action: Callable[[], Effects]


class Producer(msgspec.Struct, frozen=True):
    """Who writes in a transaction: a producer id and its epoch."""

    producer_id: int
    epoch: int


class Append(msgspec.Struct, frozen=True):
    """Records for one partition of the internal topic.

    With a `producer` they are a batch of its transaction. The machine then learns of them by `StateMachine.replay`,
    one by one, and they count when the producer's marker says so.

    `then` takes 0 when all of them are committed, else the error code of the failure as the produce path names
    it. The runtime calls it exactly once, and not from within the call that returned this effect.

    The records are refused as too large if there is no room for `reserved_bytes` more. So a later record that replaces
    them, and must not be refused, may be longer.
    """

    partition: int
    records: tuple[Record, ...]
    then: Callable[[int], Effects]
    producer: Producer | None = None
    reserved_bytes: int = 0


Effect: TypeAlias = Answer | AnswerInPieces | GoOn | Append
Effects: TypeAlias = list[Effect]
