"""Which schema a record has, and its text.

C3 01 · fingerprint, 8 bytes, little-endian · value        Avro's single-object encoding
00 · id, 4 bytes, big-endian · value                       Confluent's format, Avro
00 · id, 4 bytes, big-endian · indexes · value             Confluent's format, Protobuf
value                                                      by the schema of the topic
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.extras import missing
from appliance.schemas.avro import FINGERPRINT_BYTES, AvroSchema
from appliance.schemas.directory import SchemaDirectory
from appliance.schemas.faults import DATA_BYTES_MAX, REASON_MAX, NoSchema, Undecodable
from appliance.schemas.protobuf import ProtobufSchema
from appliance.schemas.registry import SchemaRegistry
from appliance.schemas.wire import fields_as_json

AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
AUTO: Final = "auto"
FORMS: Final = (AUTO, AVRO, PROTOBUF)
_SINGLE_OBJECT: Final = b"\xc3\x01"
_ID_BYTES: Final = 4
_HEAD_BYTES: Final = 1 + _ID_BYTES

Schema = AvroSchema | ProtobufSchema


@dataclass(frozen=True, slots=True)
class Decoded:
    """A key or value as text.

    Args:
        form: AVRO or PROTOBUF.
        json: compact.
        note: which schema it has, for a person.
    """

    form: str
    json: str
    note: str


class Decoder:
    """Decodes records by the schemas of a directory and of a registry. Threads share it."""

    def __init__(self, directory: str | None = None, registry: str | None = None) -> None:
        self._directory = None if directory is None else SchemaDirectory(Path(directory))
        self._registry = None if registry is None else SchemaRegistry(registry)

    @property
    def has_schemas(self) -> bool:
        """Whether there is a place to look for schemas."""
        return self._directory is not None or self._registry is not None

    def decode(self, data: bytes, *, topic: str, part: str, form: str = AUTO) -> Decoded:
        """Return the text of a key or value.

        Args:
            part: "key" or "value".
            form: one of FORMS. With PROTOBUF, bytes without a schema are shown by field numbers.

        Raises:
            NoSchema: nobody says which schema it has.
            Undecodable: it does not fit its schema, or is too large.
        """
        if len(data) > DATA_BYTES_MAX:
            raise Undecodable(f"it has more than {DATA_BYTES_MAX} bytes")
        try:
            return self._decoded(data, topic=topic, part=part, form=form)
        except NoSchema as fault:
            if form != PROTOBUF:
                raise
            return Decoded(PROTOBUF, fields_as_json(data), f"Protobuf without a schema ({fault})")
        except ModuleNotFoundError as error:
            absent = missing(error.name or "", needed_by=f"decoding of {form}")
            if absent is None:
                raise
            raise Undecodable(str(absent)) from None

    def _decoded(self, data: bytes, *, topic: str, part: str, form: str) -> Decoded:
        why = (
            "there are no schemas"
            if not self.has_schemas
            else f"there is no schema for the {part} of {topic}"
        )
        if data.startswith(_SINGLE_OBJECT) and form != PROTOBUF and self._directory is not None:
            fingerprint = data[2 : 2 + FINGERPRINT_BYTES]
            schema = self._directory.by_fingerprint(fingerprint)
            if schema is not None:
                return _by(schema, data[2 + FINGERPRINT_BYTES :], f"fingerprint {fingerprint.hex()}")
            why = f"no schema has the fingerprint {fingerprint.hex()}"
        fault: Undecodable | None = None
        if data[:1] == b"\0" and len(data) >= _HEAD_BYTES:
            schema_id = int.from_bytes(data[1:_HEAD_BYTES], "big")
            try:
                found = self._by_id(schema_id)
                if found is not None and _is(found, form):
                    return _by(found, data[_HEAD_BYTES:], f"schema {schema_id}", is_confluent=True)
                if self.has_schemas:
                    why = f"there is no schema {schema_id}"
            except Undecodable as error:
                fault = error
        found = None if self._directory is None else self._directory.of_topic(topic, part)
        if found is not None and _is(found, form):
            try:
                return _by(found, data, f"schema of {topic}-{part}")
            except Undecodable as error:
                raise fault or error from None
        raise fault or NoSchema(why)

    def _by_id(self, schema_id: int) -> Schema | None:
        found = None if self._directory is None else self._directory.by_id(schema_id)
        if found is None and self._registry is not None:
            found = self._registry.by_id(schema_id)
        return found


def _is(schema: Schema, form: str) -> bool:
    return form == AUTO or (form == AVRO) == isinstance(schema, AvroSchema)


def _by(schema: Schema, data: bytes, which: str, *, is_confluent: bool = False) -> Decoded:
    try:
        if isinstance(schema, AvroSchema):
            return Decoded(AVRO, schema.as_json(data), f"Avro, {which}: {schema.name}"[:REASON_MAX])
        name = schema.name
        if is_confluent:
            name, data = schema.of_confluent(data)
        return Decoded(PROTOBUF, schema.as_json(data, name=name), f"Protobuf, {which}: {name}"[:REASON_MAX])
    except Undecodable as fault:
        raise Undecodable(f"it does not fit {which}: {fault}"[:REASON_MAX]) from None
