"""A response whose array is long, encoded in pieces, so that whoever encodes it can do other work in between.

Elements of an array stand one behind the other, so those of several encodings can be joined. What stands before and
behind the array is found by comparing the response without elements and the response with one:

    response of ()     ┌ head ┐ count 0 ┌ tail ┐          head and tail are the same in each encoding
    response of (a,)   ┌ head ┐ count 1 a ┌ tail ┐        the first byte that differs is the last one of the count
    response of (b, c) ┌ head ┐ count 2 b c ┌ tail ┐
    the whole          ┌ head ┐ count 3 a b c ┌ tail ┐

A count has four bytes, or is an unsigned varint of one more where the version is flexible. The last byte of count 0
is 0 or 1, which tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from appliance.protocol.framing import SIZE
from appliance.protocol.primitives import INT32, uvarint_bytes

_COMPACT_NOTHING: Final = 1


class ArrayInPieces:
    """Args:
    encode: elements → the frame of the response with just these elements.
    """

    __slots__ = ("_count", "_elements", "_encode", "_head", "_is_compact", "_tail")

    def __init__(self, encode: Callable[[tuple[Any, ...]], bytes]) -> None:
        self._encode = encode
        self._elements: list[bytes] = []
        self._count = 0
        self._head = self._tail = b""
        self._is_compact = False

    def add(self, elements: tuple[Any, ...]) -> None:
        """Encode some more elements."""
        if not elements:
            return
        if not self._count:
            self._compare(elements[0])
        frame = self._encode(elements)
        count_bytes = len(self._count_bytes(len(elements)))
        begin = SIZE.size + len(self._head) + count_bytes
        self._elements.append(frame[begin : len(frame) - len(self._tail)])
        self._count += len(elements)

    def frame(self) -> bytes:
        """The frame of the response with all elements that were added."""
        if not self._count:
            return self._encode(())
        parts = [self._head, self._count_bytes(self._count), *self._elements, self._tail]
        return b"".join((SIZE.pack(sum(map(len, parts))), *parts))

    def _compare(self, element: Any) -> None:
        none, one = self._encode(())[SIZE.size :], self._encode((element,))[SIZE.size :]
        last = next(at for at, (left, right) in enumerate(zip(none, one, strict=False)) if left != right)
        self._is_compact = none[last] == _COMPACT_NOTHING
        self._head = none[:last] if self._is_compact else none[: last + 1 - INT32.size]
        self._tail = none[last + 1 :]

    def _count_bytes(self, count: int) -> bytes:
        return uvarint_bytes(count + 1) if self._is_compact else INT32.pack(count)
