"""Walks over a value in Avro's binary encoding without making values of it, to bound what decoding costs.

fastavro's compiled reader has no bounds: an array of 2⁴⁰ nulls takes a few bytes and all memory, and a list of linked
records ends the process where its stack ends. JSON repeats the name of a field for each record, so names are counted,
too. So this walk comes first.

Source: Apache Avro 1.12 specification, Binary Encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from appliance.schemas.faults import DECIMAL_BYTES_MAX, DEPTH_MAX, ITEMS_MAX, TEXT_MAX, Undecodable

_LONG_BYTES_MAX: Final = 10
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_DECIMAL: Final = "decimal"
_CONTAINERS: Final = frozenset({"array", "map", "record", "error"})


def check_value(data: bytes, schema: Any, named: Mapping[str, Any]) -> None:
    """Return if `data` is one value of a schema, with nothing behind it, and within the bounds.

    Args:
        schema: as fastavro's `parse_schema` returns it.
        named: full name → schema.

    Raises:
        Undecodable: it is not.
    """
    walk = _Walk(data, named)
    walk.value(schema, 0)
    if walk.at != len(data):
        raise Undecodable(f"{len(data) - walk.at} bytes are left behind the value")


class _Walk:
    __slots__ = ("_data", "_items_left", "_named", "_text_left", "at")

    def __init__(self, data: bytes, named: Mapping[str, Any]) -> None:
        self._data = data
        self._named = named
        self._items_left = ITEMS_MAX
        self._text_left = TEXT_MAX
        self.at = 0

    def value(self, schema: Any, depth: int) -> None:
        """Pass over one value."""
        self._items_left -= 1
        if self._items_left < 0:
            raise Undecodable(f"it has more than {ITEMS_MAX} values")
        if depth > DEPTH_MAX:
            raise Undecodable(f"its values are more than {DEPTH_MAX} deep")
        if isinstance(schema, list):
            branch = self._long()
            if not 0 <= branch < len(schema):
                raise Undecodable(f"there is no branch {branch} in a union of {len(schema)}")
            self.value(schema[branch], depth + 1)
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            self.value(kind, depth + 1)
        elif kind in _SIZES:
            self._skip(_SIZES[kind])
        elif kind in _CONTAINERS:
            self._container(schema, kind, depth)
        elif kind in self._named:
            self.value(self._named[kind], depth + 1)
        else:
            self._scalar(schema, kind)

    def _container(self, schema: Any, kind: str, depth: int) -> None:
        if kind == "array":
            self._blocks(schema["items"], depth, is_map=False)
        elif kind == "map":
            self._blocks(schema["values"], depth, is_map=True)
        else:
            for field in schema["fields"]:
                self._name(field["name"])
                self.value(field["type"], depth + 1)

    def _scalar(self, schema: Any, kind: str) -> None:
        if kind in {"int", "long"}:
            self._long()
        elif kind in {"bytes", "string"}:
            self._bytes(self._long(), schema)
        elif kind == "fixed":
            self._bytes(schema["size"], schema)
        elif kind == "enum":
            index, symbols = self._long(), schema["symbols"]
            if not 0 <= index < len(symbols):
                raise Undecodable(f"a value of {schema['name']} is none of its symbols")
            self._name(symbols[index])
        else:
            raise Undecodable(f"there is no type {kind}")

    def _blocks(self, items: Any, depth: int, *, is_map: bool) -> None:
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # bytes of the block
            if count > self._items_left:
                raise Undecodable(f"it has more than {ITEMS_MAX} values")
            for _ in range(count):
                if is_map:
                    self._skip(self._long())
                self.value(items, depth + 1)

    def _bytes(self, count: int, schema: Any) -> None:
        is_decimal = isinstance(schema, dict) and schema.get("logicalType") == _DECIMAL
        if is_decimal and count > DECIMAL_BYTES_MAX:
            raise Undecodable(f"a decimal has more than {DECIMAL_BYTES_MAX} bytes")
        self._skip(count)

    def _name(self, name: str) -> None:
        self._text_left -= len(name)
        if self._text_left < 0:
            raise Undecodable(f"names of its fields and symbols take more than {TEXT_MAX} characters")

    def _skip(self, count: int) -> None:
        if not 0 <= count <= len(self._data) - self.at:
            raise Undecodable("it ends too early")
        self.at += count

    def _long(self) -> int:
        value = shift = 0
        for _ in range(_LONG_BYTES_MAX):
            if self.at >= len(self._data):
                raise Undecodable("it ends too early")
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
            shift += 7
        raise Undecodable("a number has more than 64 bits")
