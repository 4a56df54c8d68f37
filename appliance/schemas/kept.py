"""Schemas that were read once, so that the next record need not read them again: a bounded number, of bounded bytes."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from appliance.schemas.avro import AvroSchema
from appliance.schemas.faults import Undecodable
from appliance.schemas.protobuf import ProtobufSchema

Schema = AvroSchema | ProtobufSchema

KEPT_MAX: Final = 1_000
KEPT_BYTES_MAX: Final = 8 << 20
"""Bytes of all texts and descriptors together. A schema takes 10 to 20 times its bytes."""
_FAULT_BYTES: Final = 1_000

Key = TypeVar("Key")
Stamp = TypeVar("Stamp")


class KeptSchemas(Generic[Key, Stamp]):
    """What was found under a key, with a stamp that says when or which one it was. The oldest give way."""

    def __init__(self, kept_max: int = KEPT_MAX, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_max = kept_max
        self._bytes_max = bytes_max
        self._entries: dict[Key, tuple[Stamp, Schema | Undecodable, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> tuple[Stamp, Schema | Undecodable] | None:
        """Return stamp and schema, or why there is none."""
        found = self._entries.get(key)
        return None if found is None else found[:2]

    def put(self, key: Key, stamp: Stamp, found: Schema | Undecodable, size_bytes: int) -> None:
        """Keep what was found; `size_bytes` of its text. One that is too large alone is kept alone."""
        if isinstance(found, Undecodable):
            size_bytes = _FAULT_BYTES
        self._drop(key)
        while self._entries and (
            len(self._entries) >= self._kept_max or self._bytes + size_bytes > self._bytes_max
        ):
            self._drop(next(iter(self._entries)))
        self._entries[key] = stamp, found, size_bytes
        self._bytes += size_bytes

    def _drop(self, key: Key) -> None:
        dropped = self._entries.pop(key, None)
        if dropped is not None:
            self._bytes -= dropped[2]
