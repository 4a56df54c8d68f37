"""A schema of Avro, and values of it as JSON. fastavro is imported by the first schema."""

from __future__ import annotations

import io
import json
from typing import Any, Final

from appliance.schemas.avro_bounds import check_value
from appliance.schemas.faults import DEPTH_MAX, SCHEMA_BYTES_MAX, Undecodable

FINGERPRINT_BYTES: Final = 8
_CRC_64: Final = "CRC-64-AVRO"


class AvroSchema:
    """One schema.

    Args:
        text: of an .avsc file.

    Raises:
        Undecodable: it is no schema, or a larger one than is read.
    """

    def __init__(self, text: str) -> None:
        import fastavro
        from fastavro.schema import fingerprint, to_parsing_canonical_form

        if len(text) > SCHEMA_BYTES_MAX:
            raise Undecodable(f"the schema has more than {SCHEMA_BYTES_MAX} bytes")
        if _depth(text) > 4 * DEPTH_MAX:
            raise Undecodable("the schema is too deep")
        self._named: dict[str, Any] = {}
        try:
            self._schema: Any = fastavro.parse_schema(json.loads(text), self._named)
            self.fingerprint = bytes.fromhex(fingerprint(to_parsing_canonical_form(self._schema), _CRC_64))
        except Exception as error:  # a schema of a stranger makes the library raise anything
            raise Undecodable(f"the schema cannot be read: {_reason(error)}") from None

    @property
    def name(self) -> str:
        """The full name of a record, enum or fixed type; else the type."""
        schema = self._schema
        if isinstance(schema, list):
            return "union"
        return str(schema.get("name") or schema["type"]) if isinstance(schema, dict) else str(schema)

    def as_json(self, data: bytes) -> str:
        """Return one value as JSON. Bytes are text of the characters 0 to 255, as in Avro's JSON encoding.

        Raises:
            Undecodable: it does not fit.
        """
        import fastavro

        check_value(data, self._schema, self._named)
        try:
            value = fastavro.schemaless_reader(io.BytesIO(data), self._schema, None)
            return json.dumps(value, ensure_ascii=False, default=_plain)
        except Exception as error:  # such as a date in the year 100,000
            raise Undecodable(_reason(error)) from None


def _plain(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes | bytearray) else str(value)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]":
            depth -= 1
    return deepest
