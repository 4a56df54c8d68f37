"""Which types of Arrow columns can be sent as which part of a record."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

BYTES_WANTED: Final = "binary or text (also large, fixed size, view, dictionary)"


def is_bytes(kind: Any) -> bool:
    """Whether such a column can be keys or values."""
    kind = storage(kind)
    if pa.types.is_dictionary(kind):
        kind = storage(kind.value_type)
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_null(kind)
    )


def is_time(kind: Any) -> bool:
    """Whether such a column can be timestamps."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_int64(kind) or pa.types.is_null(kind))


def storage(kind: Any) -> Any:
    """What an extension type, such as DuckDB's JSON, consists of."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


def is_view(kind: Any) -> bool:
    """Whether fields lie where views point."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def is_list(kind: Any) -> bool:
    """Whether it is a list of either offset size."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_number(kind: Any) -> bool:
    """A column of nothing but nulls has Arrow's type null; without rows that is an empty column."""
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def is_headers(kind: Any) -> bool:
    """Whether such a column can be headers."""
    if pa.types.is_null(kind):
        return True
    if pa.types.is_map(kind):
        return is_bytes(kind.key_type) and is_bytes(kind.item_type)
    if not is_list(kind):
        return False
    entry = kind.value_type
    return bool(pa.types.is_struct(entry) and entry.num_fields == 2 and all(is_bytes(f.type) for f in entry))


def header_fields(entry: Any) -> tuple[int, int]:
    """The places of a header's name and value in its struct: by the fields' names, or else in this order."""
    first, second = (field.name for field in entry)
    return (1, 0) if first == "value" or second == "key" else (0, 1)


def as_list(array: Any) -> Any:
    """A map array as a list array; others as they are."""
    if not pa.types.is_map(array.type):
        return array
    entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    return array.cast(pa.list_(entry))
