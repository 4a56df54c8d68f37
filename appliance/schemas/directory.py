"""Schemas from a directory of files.

| file | for |
|---|---|
| `ID.avsc`, `ID.desc` | records that name this id (Confluent's format) |
| `TOPIC-value.avsc`, `TOPIC-key.avsc` | values, or keys, of a topic that name no schema |
| `TOPIC-value.desc`, `TOPIC-key.desc` | the same for Protobuf |
| `TOPIC-value.message` | name of the message in `TOPIC-value.desc`; without it, the first one of the last file |
| any `.avsc` | records in Avro's single-object encoding, by the fingerprint of the schema |

A file is read when a record needs it, and again when it has changed.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

from appliance.schemas.avro import AvroSchema
from appliance.schemas.faults import DESCRIPTORS_BYTES_MAX, SCHEMA_BYTES_MAX, Undecodable
from appliance.schemas.kept import KeptSchemas, Schema
from appliance.schemas.protobuf import ProtobufSchema

SCANNED_MAX: Final = 2_000
"""Files that are looked at for a fingerprint."""
SCAN_AGAIN_S: Final = 10.0
_Stamp = tuple[int, int, int]


class SchemaDirectory:
    """The schemas in one directory. Threads share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._kept: KeptSchemas[str, _Stamp] = KeptSchemas()
        self._fingerprints: dict[bytes, str] = {}
        self._scanned_s = -SCAN_AGAIN_S

    def by_id(self, schema_id: int) -> Schema | None:
        """Return the schema of an id; None if there is no file for it.

        Raises:
            Undecodable: the file cannot be used. All methods raise it.
        """
        return self._of(str(schema_id))

    def of_topic(self, topic: str, part: str) -> Schema | None:
        """Return the schema of a topic; `part` is "key" or "value"."""
        return self._of(f"{topic}-{part}")

    def by_fingerprint(self, fingerprint: bytes) -> AvroSchema | None:
        """Return the schema of Avro with this CRC-64 fingerprint, as records have it."""
        with self._lock:
            name = self._fingerprints.get(fingerprint)
            if name is None and time.monotonic() - self._scanned_s >= SCAN_AGAIN_S:
                self._scan()
                name = self._fingerprints.get(fingerprint)
            found = None if name is None else self._read(name)
        return found if isinstance(found, AvroSchema) and found.fingerprint == fingerprint else None

    def _of(self, stem: str) -> Schema | None:
        if "/" in stem or "\0" in stem:
            return None
        with self._lock:
            return self._read(f"{stem}.avsc") or self._read(f"{stem}.desc")

    def _scan(self) -> None:
        self._scanned_s = time.monotonic()
        try:
            names = sorted(each.name for each in os.scandir(self.path) if each.name.endswith(".avsc"))
        except OSError as error:
            raise Undecodable(f"{self.path}: {error.strerror or error}") from None
        self._fingerprints.clear()
        for name in names[:SCANNED_MAX]:
            try:
                found = self._read(name)
            except Undecodable:
                continue  # another one may have this fingerprint
            if isinstance(found, AvroSchema):
                self._fingerprints[found.fingerprint] = name

    def _read(self, name: str) -> Schema | None:
        path = self.path / name
        try:
            status = path.stat()
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            kept = self._kept.get(name)
            if kept is None or kept[0] != stamp:
                kept = stamp, self._made(path, status.st_size)
                self._kept.put(name, *kept, status.st_size)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Undecodable(f"{path}: {error}") from None
        if isinstance(kept[1], Undecodable):
            raise Undecodable(str(kept[1]))
        return kept[1]

    def _made(self, path: Path, size_bytes: int) -> Schema | Undecodable:
        is_avro = path.suffix == ".avsc"
        try:
            if size_bytes > (SCHEMA_BYTES_MAX if is_avro else DESCRIPTORS_BYTES_MAX):
                raise Undecodable("the file is too large")
            if is_avro:
                return AvroSchema(path.read_text(encoding="utf-8"))
            message = path.with_suffix(".message")
            name = message.read_text(encoding="utf-8")[:1_000].strip() if message.exists() else ""
            return ProtobufSchema(path.read_bytes(), message=name)
        except Undecodable as fault:
            return Undecodable(f"{path.name}: {fault}")
