"""Values for every message, and two strangers who judge our bytes: kafka-python's codec and kio's.

Both were generated from Kafka's own message definitions by other people; kio's classes also tell us the schema,
so kafka-python is the one that can prove us wrong about it.
"""

from __future__ import annotations

import datetime
import uuid
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any

from hypothesis import strategies as st
from kafka.protocol.schemas.fields.struct import StructField

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.message_codec import _element_shape, _home_type
from appliance.protocol.schema import OWN_TAG_MIN, Structure, WireField, structure_of

OWN_CODEC = (ApiKey.PRODUCE, ApiKey.FETCH)

MESSAGES: list[tuple[ApiKey, int]] = [
    (api, version)
    for api in ApiKey
    if api.served and api not in OWN_CODEC
    for version in range(api.min_version, api.max_version + 1)
]

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
}

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["", "a" * 127, "ü" * 300])
_OCTETS = st.binary(max_size=12) | st.sampled_from([b"", bytes(127), bytes(300)])
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_UUIDS = st.none() | st.integers(1, 2**128 - 1).map(lambda number: uuid.UUID(int=number))
_OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "uuid": _UUIDS,
    "bytes": _OCTETS,
}


def shape_of(api: ApiKey, kind: str) -> type:
    module = import_module(f"appliance.protocol.apis.{api.name.lower()}")
    shape: type = getattr(module, f"{api.title}{kind}")
    return shape


@cache
def messages(api: ApiKey, version: int, kind: str) -> st.SearchStrategy[Any]:
    """Any message of this API and version that the version can say in full. Kept: Hypothesis validates each once."""
    structure = structure_of(api, version, response=kind == "Response")
    return _shapes(structure, shape_of(api, kind))


def _shapes(structure: Structure, shape: type) -> st.SearchStrategy[Any]:
    values = {home_of(field, shape): _values(field, shape) for field in _judged(structure)}
    return st.builds(shape, **values)


def _judged(structure: Structure) -> list[WireField]:
    """The fields that others know, too, in wire order."""
    every = (*structure.fields, *structure.tagged)
    return [field for field in every if field.tag is None or field.tag < OWN_TAG_MIN]


def _values(field: WireField, shape: type) -> st.SearchStrategy[Any]:
    one: st.SearchStrategy[Any]
    if field.structure is not None:
        one = _shapes(field.structure, _element_shape(field, shape))
    elif field.primitive == "int32" and field.name.endswith("authorized_operations"):
        one = st.just(-(2**31))  # kafka-python makes a set of bits out of anything else
    elif field.name in {"error_code", "partition_error_code"}:
        one = st.integers(-1, 127)  # kio knows only codes that exist
    elif field.name in {"retention_time_ms", "max_lifetime_ms", "renew_period_ms", "expiry_time_period_ms"}:
        one = st.integers(-(2**43), 2**43)  # kio makes a timedelta of it, and floats on the way back
    elif field.name in {
        "transaction_start_time_ms",
        "issue_timestamp_ms",
        "expiry_timestamp_ms",
        "max_timestamp_ms",
    }:
        one = st.integers(0, 2**43)  # kio makes a date of it
    elif field.primitive in _INTEGERS:
        one = st.integers(*_INTEGERS[field.primitive])
    else:
        one = _OTHERS.get(field.primitive or "", _TEXTS)
    if field.is_array:
        element = _home_type(field, shape)
        bare: str | None = getattr(element, "BARE_FIELD", None)
        if bare is not None and field.structure is None:
            name = bare
            one = one.map(lambda value: element(**{name: value}))
        one = st.lists(one, max_size=3).map(tuple)
    return st.none() | one if field.nullable else one


def home_of(field: WireField, shape: type) -> str:
    name: str = getattr(shape, "WIRE_NAMES", {}).get(field.name, field.name)
    return name


def tree(message: Any, structure: Structure) -> list[Any]:
    """The values of one of our shapes in wire order, then the tagged ones: names fall away."""
    shape = type(message)
    return [_plain(getattr(message, home_of(field, shape)), field) for field in _judged(structure)]


def _plain(value: Any, field: WireField) -> Any:
    if isinstance(value, tuple):
        return [_plain(one, field) for one in value]
    if field.structure is not None and value is not None:
        return tree(value, field.structure)
    if field.primitive == "string" and not isinstance(value, str | None):
        return getattr(value, type(value).BARE_FIELD)
    return value


UNKNOWN_TO_KAFKA_PYTHON = (
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
)
"""kafka-python knows neither delegation tokens nor telemetry, and of groups the classic protocol only. Of these, kio
alone judges."""


def kafka_python_class(api: ApiKey, kind: str) -> Any:
    name = f"{api.title}{kind}"
    for package in ("metadata", "sasl", "admin", "consumer", "producer"):
        module = import_module(f"kafka.protocol.{package}")
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


def kafka_python_tree(message: Any, struct: StructField, version: int) -> list[Any]:
    """The same tree, told by kafka-python."""
    own = [field for field in struct._fields if field.for_version_q(version)]
    plain = [field for field in own if not field.tagged_field_q(version)]
    tagged = sorted((field for field in own if field.tagged_field_q(version)), key=lambda field: field.tag)
    return [_kafka_python_value(getattr(message, field.name), field, version) for field in (*plain, *tagged)]


def _kafka_python_value(value: Any, field: Any, version: int) -> Any:
    if value is None and field.type_str == "bitfield":
        return -(2**31)
    if value is None and field.is_struct() and field.tagged_field_q(version):
        return [inner.default for inner in field._fields if inner.for_version_q(version)]
    if isinstance(value, list):
        if field.is_struct_array():
            return [kafka_python_tree(one, field, version) for one in value]
        return list(value)
    if field.is_struct() and value is not None:
        return kafka_python_tree(value, field, version)
    return value


def kio_class(api: ApiKey, version: int, kind: str) -> Any:
    module = import_module(f"kio.schema.{api.name.lower()}.v{version}")
    return getattr(module, f"{api.title}{kind}")


def kio_tree(message: Any) -> list[Any]:
    """The same tree, told by kio."""
    own = fields(message)
    plain = [field for field in own if "tag" not in field.metadata]
    tagged = sorted(
        (field for field in own if "tag" in field.metadata), key=lambda field: field.metadata["tag"]
    )
    return [_kio_value(getattr(message, field.name)) for field in (*plain, *tagged)]


def _kio_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_kio_value(one) for one in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // datetime.timedelta(milliseconds=1)
    if hasattr(value, "__kafka_type__") or hasattr(value, "__api_key__"):
        return kio_tree(value)
    return value
