"""A schema of Avro, and values of it as JSON. fastavro is imported by the first schema."""

from __future__ import annotations

import io
import json
import math
from typing import Any, Final

from appliance.schemas.avro_bounds import check_value
from appliance.schemas.faults import DEPTH_MAX, REASON_MAX, SCHEMA_BYTES_MAX, Undecodable
from appliance.schemas.nesting import json_depth

FINGERPRINT_BYTES: Final = 8
_CRC_64: Final = "CRC-64-AVRO"
_LIBRARYS_OWN: Final = "__fastavro_parsed"
"""fastavro takes an object with this member for one that it has checked before."""


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
        if json_depth(text) > 4 * DEPTH_MAX:
            raise Undecodable("the schema is too deep")
        self._named: dict[str, Any] = {}
        try:
            self._schema: Any = fastavro.parse_schema(json.loads(text, object_hook=_checked), self._named)
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

        JSON has no infinity and no NaN, so they are texts, as in Protobuf's JSON.

        Raises:
            Undecodable: it does not fit.
        """
        import fastavro

        try:
            check_value(data, self._schema, self._named)
            value = fastavro.schemaless_reader(io.BytesIO(data), self._schema, None)
            return _text(value)
        except Undecodable:
            raise
        except Exception as error:  # such as a date in the year 100,000, or a size that is no number
            raise Undecodable(_reason(error)) from None


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    if _LIBRARYS_OWN in found:
        raise ValueError(f"a schema has no member {_LIBRARYS_OWN}")
    return found


def _text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=_plain, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _plain(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes | bytearray) else str(value)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_MAX]
