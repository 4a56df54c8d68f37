"""A request of every served API, made from Kafka's own message definitions: the shortest, and one that names something.

The second has one element in each array, and names that nobody has, so that most errors of Kafka are among the answers.
"""

from __future__ import annotations

import datetime
import io
import struct
import uuid
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any, Final, get_args, get_origin, get_type_hints

from kio.schema.index import api_key_map
from kio.serial import entity_writer

from appliance.protocol.api_versions import ApiKey

NAME: Final = "nobody-has-this-name"
GIVEN: Final[dict[str, object]] = {"acks": -1, "timeout": datetime.timedelta(seconds=10)}
"""With 0 acks there is no answer, and without time to wait a busy broker's answer is now this one, now that one."""
_ZEROS: Final[dict[str, object]] = {
    "bool": False,
    "bytes": b"",
    "float64": 0.0,
    "records": b"",
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
    "uuid": uuid.UUID(int=7),
    "string": NAME,
}


def request(api: ApiKey, version: int, *, elements: int) -> bytes:
    """Return a request without its size; each array in it has so many elements."""
    name = api_key_map[api]
    module = import_module(f"kio.schema.{name}.v{version}.request")
    kind = next(
        value
        for value in vars(module).values()
        if getattr(value, "__type__", None) is not None and value.__type__.name == "request"
    )
    buffer = io.BytesIO()
    buffer.write(struct.pack(">hhi", api, version, 77))
    buffer.write(struct.pack(">h", 4) + b"test")
    if kind.__flexible__:
        buffer.write(b"\0")
    entity_writer(kind)(buffer, _filled(kind, elements))
    return buffer.getvalue()


def _filled(kind: Any, elements: int) -> Any:
    hints = get_type_hints(kind)
    return kind(
        **{
            each.name: GIVEN[each.name]
            if each.name in GIVEN
            else _value(hints[each.name], each.metadata.get("kafka_type"), elements)
            for each in fields(kind)
            if each.default is MISSING
        }
    )


def _value(hint: Any, kafka_type: str | None, elements: int) -> Any:
    if get_origin(hint) is tuple:
        return tuple(_value(get_args(hint)[0], kafka_type, elements) for _ in range(elements))
    if type(None) in get_args(hint):
        return (
            None if get_origin(_present(hint)) is not tuple else _value(_present(hint), kafka_type, elements)
        )
    if kafka_type is None:
        return _filled(hint, elements)
    return _ZEROS.get(kafka_type, 0)


def _present(hint: Any) -> Any:
    return next(each for each in get_args(hint) if each is not type(None))
