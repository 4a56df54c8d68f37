"""Counts the values of a parsed message, and the characters that names add, before the library makes JSON of it.

A parsed message is compact. As JSON, each value is an object of Python, and each field has its name: a message of a
megabyte could become gigabytes. A `google.protobuf.Any` has a message inside of its bytes, which is counted as well.
"""

from __future__ import annotations

from typing import Any, Final

from appliance.schemas.faults import DEPTH_MAX, ITEMS_MAX, TEXT_MAX, Undecodable

_ANY: Final = "google.protobuf.Any"


def check_message(message: Any, pool: Any) -> None:
    """Return if a message is within the bounds.

    Args:
        message: parsed.
        pool: has the types that an Any may name.

    Raises:
        Undecodable: it has too many values, or its names are too long.
    """
    _Count(pool).message(message, 0)


class _Count:
    __slots__ = ("_items_left", "_pool", "_symbols", "_text_left")

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._items_left = ITEMS_MAX
        self._text_left = TEXT_MAX
        self._symbols: dict[str, int] = {}
        """Full name of an enum → length of its longest symbol."""

    def message(self, message: Any, depth: int) -> None:
        """Count the fields of a message. The parser of the library bounds the depth, except through an Any."""
        if message.DESCRIPTOR.full_name == _ANY:
            self._any(message, depth)
            return
        for field, value in message.ListFields():
            self._take(1, len(field.full_name if field.is_extension else field.name))
            if _is_map(field):
                self._map(field, value, depth)
            elif field.message_type is not None:
                for each in value if _is_repeated(field) else (value,):
                    self._take(1, 0)
                    self.message(each, depth)
            else:
                self._scalars(field, len(value) if _is_repeated(field) else 1)

    def _any(self, message: Any, depth: int) -> None:
        if depth >= DEPTH_MAX:
            raise Undecodable(f"its values are more than {DEPTH_MAX} deep")
        from google.protobuf import message_factory

        self._take(1, len(message.type_url))
        name = message.type_url.rpartition("/")[2]
        if not name:
            return
        inner = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))()
        inner.ParseFromString(message.value)
        self.message(inner, depth + 1)

    def _map(self, field: Any, value: Any, depth: int) -> None:
        of_values = field.message_type.fields_by_name["value"]
        if of_values.message_type is None:
            self._scalars(of_values, len(value))
            return
        for key in value:
            self._take(1, 0)
            self.message(value[key], depth)

    def _scalars(self, field: Any, count: int) -> None:
        longest = 0
        if (enum := field.enum_type) is not None:
            if enum.full_name not in self._symbols:
                self._symbols[enum.full_name] = max(map(len, enum.values_by_name), default=0)
            longest = self._symbols[enum.full_name]
        self._take(count, count * longest)

    def _take(self, items: int, characters: int) -> None:
        self._items_left -= items
        self._text_left -= characters
        if self._items_left < 0:
            raise Undecodable(f"it has more than {ITEMS_MAX} values")
        if self._text_left < 0:
            raise Undecodable(f"names of its fields and symbols take more than {TEXT_MAX} characters")


def _is_repeated(field: Any) -> bool:
    # protobuf 5 has only the label, which later releases call out of date.
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
