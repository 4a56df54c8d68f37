"""Readers and writers for our shapes, compiled once per message and version from its `Structure`.

A *shape* is a frozen `msgspec.Struct` of ours, the same for every version of its API (`apis/`). A wire field finds
its home in the shape's field of the same name. What a version lacks keeps the shape's default when it is
read and is left out when it is written. Three class variables of a shape say the exceptions:

    WIRE_NAMES  {name on the wire: name in the shape}, where Kafka renamed a field
    BARE_FIELD  the field that an older version sends alone instead of the structure
    adapt       staticmethod (version, fields), called before a shape is made, where a value changed its sense

Reading costs some µs per structure; writing packs runs of fixed fields with one `struct` call, 2 to 3 µs per
partition of a metadata response.

A request may hold 100,000 structures, which is half a second. So each reader and writer has a twin *in pieces*: a
generator that yields after every PIECE elements of an array, however deep it lies, and returns what the other returns.
The writer cuts arrays of structures only: numbers are packed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import cache
from operator import attrgetter
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, TypeAlias, get_args, get_origin

from msgspec.structs import FieldInfo, fields

from appliance.errors import ApplianceDefect, MalformedFrame
from appliance.protocol.primitives import (
    INT32,
    Cursor,
    compact_octets_bytes,
    compact_string_bytes,
    octets_bytes,
    string_bytes,
    uuid_bytes,
    uvarint_bytes,
)
from appliance.protocol.schema import Structure, WireField

Read: TypeAlias = Callable[[Cursor], Any]
Write: TypeAlias = Callable[[bytearray, Any], None]
ReadInPieces: TypeAlias = Callable[[Cursor], Generator[None, None, Any]]
WriteInPieces: TypeAlias = Callable[[bytearray, Any], Generator[None, None, None]]

PIECE: Final = 32

_FORMATS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "float64": "d", "bool": "?"}

_READ_FIXED: dict[str, Read] = {
    "int8": Cursor.int8,
    "int16": Cursor.int16,
    "int32": Cursor.int32,
    "int64": Cursor.int64,
    "uint16": Cursor.uint16,
    "float64": Cursor.float64,
    "bool": Cursor.boolean,
    "uuid": Cursor.uuid,
}

_READ_STRING: dict[tuple[bool, bool], Read] = {
    (False, False): Cursor.string,
    (False, True): Cursor.nullable_string,
    (True, False): Cursor.compact_string,
    (True, True): Cursor.compact_nullable_string,
}

_READ_OCTETS: dict[tuple[bool, bool], Read] = {
    (False, False): Cursor.octets,
    (False, True): Cursor.nullable_octets,
    (True, False): Cursor.compact_octets,
    (True, True): Cursor.compact_nullable_octets,
}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────


def reader_for(structure: Structure, shape: type, version: int) -> Read:
    """A function that reads one `structure` from a cursor into a `shape`."""
    homes = _homes(structure, shape)
    steps = tuple(
        (homes[field.name][0], _field_reader(field, structure, shape, version)) for field in structure.fields
    )
    tagged = {
        field.tag: (homes[field.name][0], _field_reader(field, structure, shape, version))
        for field in structure.tagged
    }
    missing = _required(shape) - {home for home, _ in homes.values()}
    if missing:
        raise ApplianceDefect(
            f"{shape.__name__}.{missing.pop()} has no default and is not in version {version}"
        )
    adapt: Callable[[int, dict[str, Any]], None] | None = getattr(shape, "adapt", None)
    flexible = structure.flexible

    def read(cursor: Cursor) -> Any:
        values = {name: read_field(cursor) for name, read_field in steps}
        if flexible:
            _read_tagged(cursor, tagged, values)
        if adapt is not None:
            adapt(version, values)
        return shape(**values)

    return read


def pieces_reader_for(structure: Structure, shape: type, version: int) -> ReadInPieces | None:
    """The twin of `reader_for`; None where nothing in the structure is worth a cut."""
    homes = _homes(structure, shape)
    steps = tuple(
        (
            homes[field.name][0],
            _field_reader(field, structure, shape, version),
            _pieces_field_reader(field, structure, shape, version),
        )
        for field in structure.fields
    )
    if all(in_pieces is None for _, _, in_pieces in steps):
        return None
    tagged = {
        field.tag: (homes[field.name][0], _field_reader(field, structure, shape, version))
        for field in structure.tagged
    }
    adapt: Callable[[int, dict[str, Any]], None] | None = getattr(shape, "adapt", None)
    flexible = structure.flexible

    def read(cursor: Cursor) -> Generator[None, None, Any]:
        values: dict[str, Any] = {}
        for name, read_field, in_pieces in steps:
            if in_pieces is None:
                values[name] = read_field(cursor)
            else:
                values[name] = yield from in_pieces(cursor)
        if flexible:
            _read_tagged(cursor, tagged, values)
        if adapt is not None:
            adapt(version, values)
        return shape(**values)

    return read


def _pieces_field_reader(
    field: WireField, structure: Structure, shape: type, version: int
) -> ReadInPieces | None:
    if not field.is_array:
        return None
    element = _element_reader(field, structure, shape, version)
    in_pieces = None
    if field.structure is not None:
        in_pieces = pieces_reader_for(field.structure, _element_shape(field, shape), version)
    count_of = _counter(field, flexible=structure.flexible)

    def read(cursor: Cursor) -> Generator[None, None, tuple[Any, ...] | None]:
        count = count_of(cursor)
        if count < 0:
            return None
        elements: list[Any] = []
        for number in range(1, count + 1):
            elements.append(element(cursor) if in_pieces is None else (yield from in_pieces(cursor)))
            if not number % PIECE:
                yield
        return tuple(elements)

    return read


def _read_tagged(cursor: Cursor, known: dict[int | None, tuple[str, Read]], values: dict[str, Any]) -> None:
    for _ in range(cursor.tagged_field_count()):
        tag = cursor.uvarint()
        size = cursor.tagged_field_size()
        field_end = cursor.position + size
        if tag in known:
            name, read_field = known[tag]
            values[name] = read_field(cursor)
            if cursor.position != field_end:
                raise MalformedFrame(f"tagged field {tag} is not {size} bytes long")
        cursor.position = field_end


def _field_reader(field: WireField, structure: Structure, shape: type, version: int) -> Read:
    element = _element_reader(field, structure, shape, version)
    if field.is_array:
        return _array_reader(field, element, flexible=structure.flexible)
    return _nullable_structure(element) if field.structure is not None and field.nullable else element


def _element_reader(field: WireField, structure: Structure, shape: type, version: int) -> Read:
    """Reads the field's value, or one element of it."""
    flexible = structure.flexible
    if field.structure is not None:
        return reader_for(field.structure, _element_shape(field, shape), version)
    if field.primitive == "string":
        element = _READ_STRING[flexible, field.nullable and not field.is_array]
    elif field.primitive == "bytes":
        element = _READ_OCTETS[flexible, field.nullable and not field.is_array]
    else:
        element = _READ_FIXED[field.primitive or ""]
    if field.is_array and (bare := _bare_shape(field, shape)):
        return _wrapped(element, *bare)
    return element


def _array_reader(field: WireField, element: Read, *, flexible: bool) -> Read:
    count_of = _counter(field, flexible=flexible)

    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        count = count_of(cursor)
        if count < 0:
            return None
        return tuple([element(cursor) for _ in range(count)])

    return read


def _counter(field: WireField, *, flexible: bool) -> Callable[[Cursor], int]:
    """Reads how many elements an array has; below 0 for a null that may stand there."""
    count_of = Cursor.compact_array_count if flexible else Cursor.array_count
    bytes_min, nullable, name = field.element_bytes_min(flexible), field.nullable, field.name

    def read(cursor: Cursor) -> int:
        count = count_of(cursor, bytes_min)
        if count < 0 and not nullable:
            raise MalformedFrame(f"null where the array {name} must stand")
        return count

    return read


def _nullable_structure(element: Read) -> Read:
    """A nullable structure is led by an int8: below 0 for null (KIP-893)."""

    def read(cursor: Cursor) -> Any:
        return None if cursor.int8() < 0 else element(cursor)

    return read


def _wrapped(element: Read, shape: type, bare_field: str) -> Read:
    def read(cursor: Cursor) -> Any:
        return shape(**{bare_field: element(cursor)})

    return read


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────


def writer_for(structure: Structure, shape: type) -> Write:
    """A function that appends one `shape` to a bytearray as `structure`."""
    homes = _homes(structure, shape)
    plain = tuple(_plain_writers(structure.fields, structure, shape, homes))
    tagged = _tagged_writers(structure, shape, homes)
    flexible = structure.flexible

    def write(out: bytearray, value: Any) -> None:
        for step in plain:
            step(out, value)
        if flexible:
            _write_tagged(out, value, tagged)

    return write


def _plain_writers(
    fields_in_order: Iterable[WireField], structure: Structure, shape: type, homes: dict[str, tuple[str, Any]]
) -> list[Write]:
    steps: list[Write] = []
    run: list[WireField] = []
    for field in fields_in_order:
        if not field.is_array and field.structure is None and field.primitive in _FORMATS:
            run.append(field)
            continue
        if run:
            steps.append(_run_writer(run, homes))
            run = []
        steps.append(_field_writer(field, structure, shape, homes[field.name][0]))
    if run:
        steps.append(_run_writer(run, homes))
    return steps


def _tagged_writers(
    structure: Structure, shape: type, homes: dict[str, tuple[str, Any]]
) -> tuple[tuple[int, str, Any, Write], ...]:
    return tuple(
        (field.tag or 0, home, default, _value_writer(field, structure, shape))
        for field in structure.tagged
        for home, default in (homes[field.name],)
    )


def pieces_writer_for(structure: Structure, shape: type) -> WriteInPieces | None:
    """The twin of `writer_for`; None where nothing in the structure is worth a cut."""
    homes = _homes(structure, shape)
    # Runs of fixed fields end where an array of structures begins, so what lies between two arrays is one step.
    steps: list[Write | WriteInPieces] = []
    cuts: list[bool] = []
    plain: list[WireField] = []
    for field in structure.fields:
        in_pieces = _pieces_field_writer(field, structure, shape, homes[field.name][0])
        if in_pieces is None:
            plain.append(field)
            continue
        if plain:
            steps += _plain_writers(plain, structure, shape, homes)
            cuts += [False] * (len(steps) - len(cuts))
            plain = []
        steps.append(in_pieces)
        cuts.append(True)
    if not any(cuts):
        return None
    steps += _plain_writers(plain, structure, shape, homes)
    cuts += [False] * (len(steps) - len(cuts))
    in_order: tuple[tuple[Any, bool], ...] = tuple(zip(steps, cuts, strict=True))
    tagged = _tagged_writers(structure, shape, homes)
    flexible = structure.flexible

    def write(out: bytearray, value: Any) -> Generator[None, None, None]:
        for step, is_cut in in_order:
            if is_cut:
                yield from step(out, value)
            else:
                step(out, value)
        if flexible:
            _write_tagged(out, value, tagged)

    return write


def _pieces_field_writer(
    field: WireField, structure: Structure, shape: type, home: str
) -> WriteInPieces | None:
    if field.structure is None or not field.is_array:
        return None
    element_shape = _element_shape(field, shape)
    element = writer_for(field.structure, element_shape)
    in_pieces = pieces_writer_for(field.structure, element_shape)
    write_count = _count_writer(field, flexible=structure.flexible)
    get = attrgetter(home)

    def write(out: bytearray, value: Any) -> Generator[None, None, None]:
        elements = get(value)
        if not write_count(out, elements):
            return
        for number, one in enumerate(elements, 1):
            if in_pieces is None:
                element(out, one)
            else:
                yield from in_pieces(out, one)
            if not number % PIECE:
                yield

    return write


def _run_writer(run: list[WireField], homes: dict[str, tuple[str, Any]]) -> Write:
    """Consecutive fixed fields go out in one `struct` call."""
    pack = Struct(">" + "".join(_FORMATS[field.primitive or ""] for field in run)).pack
    names = [homes[field.name][0] for field in run]
    get = attrgetter(*names)

    def fault(value: Any, error: Exception) -> ApplianceDefect:
        return ApplianceDefect(
            f"{type(value).__name__}: one of {', '.join(names)} does not fit its field: {error}"
        )

    if len(names) == 1:

        def write_one(out: bytearray, value: Any) -> None:
            try:
                out += pack(get(value))
            except struct_error as error:
                raise fault(value, error) from error

        return write_one

    def write_run(out: bytearray, value: Any) -> None:
        try:
            out += pack(*get(value))
        except struct_error as error:
            raise fault(value, error) from error

    return write_run


def _field_writer(field: WireField, structure: Structure, shape: type, home: str) -> Write:
    get = attrgetter(home)
    write_value = _value_writer(field, structure, shape)

    def write(out: bytearray, value: Any) -> None:
        write_value(out, get(value))

    return write


def _value_writer(field: WireField, structure: Structure, shape: type) -> Write:
    flexible = structure.flexible
    if field.is_array:
        if field.primitive in _FORMATS:
            return _number_array_writer(field, _FORMATS[field.primitive or ""], flexible=flexible)
        return _array_writer(field, _element_writer(field, structure, shape), flexible=flexible)
    element = _element_writer(field, structure, shape)
    if not field.nullable or field.structure is None:
        return element

    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\xff"
            return
        out += b"\x01"
        element(out, value)

    return write_nullable


def _element_writer(field: WireField, structure: Structure, shape: type) -> Write:
    if field.structure is not None:
        return writer_for(field.structure, _element_shape(field, shape))
    if field.primitive == "uuid":
        return _uuid_writer
    if field.primitive in _FORMATS:
        pack = Struct(">" + _FORMATS[field.primitive]).pack

        def write_number(out: bytearray, value: int) -> None:
            out += pack(value)

        return write_number
    nullable, name = field.nullable and not field.is_array, field.name
    if field.primitive == "bytes":
        return _octets_writer(name, flexible=structure.flexible, nullable=nullable)
    encode = compact_string_bytes if structure.flexible else string_bytes
    bare = _bare_shape(field, shape) if field.is_array else None
    unwrap: Callable[[Any], Any] | None = attrgetter(bare[1]) if bare else None

    def write_text(out: bytearray, value: Any) -> None:
        text: str | None = unwrap(value) if unwrap is not None else value
        if text is None and not nullable:
            raise ApplianceDefect(f"null where the string {name} must stand")
        out += encode(text)

    return write_text


def _octets_writer(name: str, *, flexible: bool, nullable: bool) -> Write:
    encode = compact_octets_bytes if flexible else octets_bytes

    def write(out: bytearray, value: Any) -> None:
        if value is None and not nullable:
            raise ApplianceDefect(f"null where the bytes {name} must stand")
        out += encode(value)

    return write


def _uuid_writer(out: bytearray, value: Any) -> None:
    out += uuid_bytes(value)


def _count_writer(field: WireField, *, flexible: bool) -> Callable[[bytearray, Any], bool]:
    """Writes the count of an array; True if elements follow."""
    nullable, name, pack = field.nullable, field.name, INT32.pack

    def write(out: bytearray, value: Any) -> bool:
        if value is None:
            if not nullable:
                raise ApplianceDefect(f"null where the array {name} must stand")
            out += b"\x00" if flexible else b"\xff\xff\xff\xff"
            return False
        out += uvarint_bytes(len(value) + 1) if flexible else pack(len(value))
        return len(value) > 0

    return write


def _array_writer(field: WireField, element: Write, *, flexible: bool) -> Write:
    write_count = _count_writer(field, flexible=flexible)

    def write(out: bytearray, value: Any) -> None:
        if write_count(out, value):
            for one in value:
                element(out, one)

    return write


def _number_array_writer(field: WireField, fmt: str, *, flexible: bool) -> Write:
    write_count = _count_writer(field, flexible=flexible)
    # Replica lists are nearly always this short.
    packs = tuple(Struct(f">{count}{fmt}").pack for count in range(8))

    def write(out: bytearray, value: Any) -> None:
        if write_count(out, value):
            count = len(value)
            out += packs[count](*value) if count < 8 else Struct(f">{count}{fmt}").pack(*value)

    return write


def _write_tagged(out: bytearray, value: Any, tagged: tuple[tuple[int, str, Any, Write], ...]) -> None:
    if not tagged:
        out += b"\x00"
        return
    present: list[tuple[int, bytearray]] = []
    for tag, home, default, write_value in tagged:
        field_value = getattr(value, home)
        if field_value != default:
            body = bytearray()
            write_value(body, field_value)
            present.append((tag, body))
    out += uvarint_bytes(len(present))
    for tag, body in present:
        out += uvarint_bytes(tag) + uvarint_bytes(len(body)) + body


# ── shapes ────────────────────────────────────────────────────────────────────────────────────────────────


def _homes(structure: Structure, shape: type) -> dict[str, tuple[str, Any]]:
    """Wire field name to (field of the shape, its default)."""
    renamed: dict[str, str] = getattr(shape, "WIRE_NAMES", {})
    own = _fields(shape)
    homes: dict[str, tuple[str, Any]] = {}
    for field in (*structure.fields, *structure.tagged):
        home = renamed.get(field.name, field.name)
        if home not in own:
            raise ApplianceDefect(f"{shape.__name__} has no field for {structure.name}.{field.name}")
        homes[field.name] = (home, own[home].default)
    return homes


def _required(shape: type) -> set[str]:
    return {name for name, field in _fields(shape).items() if field.required}


@cache
def _fields(shape: type) -> dict[str, FieldInfo]:
    return {field.name: field for field in fields(shape)}


def _home_type(field: WireField, shape: type) -> Any:
    """The class that the shape's annotation names for `field`, without None and tuple."""
    home = getattr(shape, "WIRE_NAMES", {}).get(field.name, field.name)
    annotation = _fields(shape)[home].type
    members = [annotation] if get_origin(annotation) is tuple else (get_args(annotation) or (annotation,))
    for member in members:
        if get_origin(member) is tuple:
            return get_args(member)[0]
        if member is not type(None):
            return member
    raise ApplianceDefect(f"cannot read the type of {shape.__name__}.{home}")


def _element_shape(field: WireField, shape: type) -> type:
    element: type = _home_type(field, shape)
    return element


def _bare_shape(field: WireField, shape: type) -> tuple[type, str] | None:
    """(shape, field) if an array of plain values stands for an array of shapes in this version."""
    element = _home_type(field, shape)
    bare_field: str | None = getattr(element, "BARE_FIELD", None)
    return None if bare_field is None else (element, bare_field)
