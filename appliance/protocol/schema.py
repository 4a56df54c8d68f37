"""The bytes of every message and version, read off kio's classes.

kio carries a dataclass for each message and version, generated from Kafka's own message definitions; its
fields say type, order, nullability, tag and default. This file turns one into a `Structure`, which
`message_codec` compiles into a reader or a writer for our shapes.

Two structures have a tagged field more (OWN_FIELDS, decision 0134). A peer that does not know it skips it (KIP-482).

We use kio's classes but not its reader and writer (decision 0011): the reader refuses every tagged field it does
not know, which KIP-482 wants skipped, and lets an array of a million ids grow to 150 MB; the writer imports
asyncio and takes four times as long as ours.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from appliance.errors import ApplianceDefect
from appliance.protocol.api_versions import ApiKey

_DURATION_TYPES = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
"""What kio reads into times of its own, and the integer that really stands there. Our names end in `_ms`."""

_FIXED_BYTES = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "float64": 8,
    "bool": 1,
    "uuid": 16,
}


@dataclass(frozen=True, slots=True)
class WireField:
    """One field as it stands on the wire.

    `structure` is set for nested structures, `primitive` otherwise; both describe the element if `is_array`.
    """

    name: str
    primitive: str | None
    structure: Structure | None
    is_array: bool
    nullable: bool
    tag: int | None

    def bytes_min(self, flexible: bool) -> int:
        """The fewest bytes this field can take: 0 for a tagged one."""
        if self.tag is not None:
            return 0
        if self.is_array:
            return 1 if flexible else 4
        return self.element_bytes_min(flexible)

    def element_bytes_min(self, flexible: bool) -> int:
        if self.structure is not None:
            return 1 if self.nullable and not self.is_array else self.structure.bytes_min
        if self.primitive == "string":
            return 1 if flexible else 2
        if self.primitive == "bytes":
            return 1 if flexible else 4
        return _FIXED_BYTES[self.primitive or ""]


OWN_TAG_MIN = 10_000
"""Tags of our own fields; Kafka counts its tags up from 0 in each structure."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The fields of a structure in wire order, tagged ones apart and by ascending tag."""

    name: str
    flexible: bool
    fields: tuple[WireField, ...]
    tagged: tuple[WireField, ...]

    @property
    def bytes_min(self) -> int:
        """The fewest bytes one can take; what a declared array count is held against."""
        own = sum(field.bytes_min(self.flexible) for field in self.fields)
        return own + 1 if self.flexible else max(own, 1)


OWN_FIELDS: Mapping[str, WireField] = {
    "OffsetFetchRequest": WireField("with_commit_times", "bool", None, False, False, OWN_TAG_MIN),
    "OffsetFetchResponsePartitions": WireField("commit_time_ms", "int64", None, False, False, OWN_TAG_MIN),
}
"""kio's class → the tagged field that only the appliance knows, where the version has tagged fields."""


def structure_of(api: ApiKey, version: int, *, response: bool) -> Structure:
    """The body of one message. Imports kio's classes of this API and version on first use (about 4 ms)."""
    package = api.name.lower()
    kind = "Response" if response else "Request"
    module = _kio_module(f"kio.schema.{package}.v{version}")
    return _structure(getattr(module, f"{api.title}{kind}"))


def _kio_module(name: str) -> ModuleType:
    """Import one of kio's modules without the test library that kio imports wherever it happens to be
    installed.

    That library costs 100 ms and 12 MB and serves only kio's own tests. Where a test run has it loaded
    already, nothing changes.
    """
    if "kio.static.primitive" not in sys.modules and "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]  # makes `import` fail, as kio expects
        try:
            import_module("kio.static.primitive")
        finally:
            del sys.modules["hypothesis"]
    return import_module(name)


@cache
def _structure(kio_class: Any) -> Structure:
    flexible: bool = kio_class.__flexible__
    plain: list[WireField] = []
    tagged: list[WireField] = []
    for entry in fields(kio_class):
        wire_field = _wire_field(entry.name, entry.type, dict(entry.metadata))
        (plain if wire_field.tag is None else tagged).append(wire_field)
        if wire_field.tag is not None and entry.default is MISSING and wire_field.structure is None:
            raise ApplianceDefect(f"{kio_class.__name__}.{entry.name} is tagged and has no default")
    if flexible and kio_class.__name__ in OWN_FIELDS:
        tagged.append(OWN_FIELDS[kio_class.__name__])
    tagged.sort(key=lambda one: one.tag or 0)
    return Structure(kio_class.__name__, flexible, tuple(plain), tuple(tagged))


def _wire_field(name: str, annotation: Any, metadata: dict[str, Any]) -> WireField:
    inner, nullable = _without_none(annotation)
    is_array = get_origin(inner) is tuple
    element = get_args(inner)[0] if is_array else inner
    primitive: str | None = metadata.get("kafka_type")
    structure: Structure | None = None
    if primitive is None:
        if not (isinstance(element, type) and is_dataclass(element)):
            raise ApplianceDefect(f"field {name} of type {element} has no Kafka type")
        structure = _structure(element)
    elif primitive == "error_code":
        primitive = "int16"
    elif primitive in _DURATION_TYPES:
        primitive = _DURATION_TYPES[primitive]
        name += "_ms"
    # On the wire a missing uuid is sixteen zeros, not a null.
    return WireField(
        name, primitive, structure, is_array, nullable and primitive != "uuid", metadata.get("tag")
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        if len(members) != 1:
            raise ApplianceDefect(f"cannot read the type {annotation}")
        return members[0], NoneType in get_args(annotation)
    return annotation, False
