"""Schemas and records that are small, and whose text would not be: long names, large numbers, many values."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pb2

from appliance.schemas.avro import AvroSchema
from appliance.schemas.decoder import Decoder
from appliance.schemas.faults import DECIMAL_BYTES_MAX, REASON_MAX, Undecodable
from appliance.schemas.protobuf import ProtobufSchema
from tests.schemas.samples import avro, order, order_descriptors

LONG = "n" * 500_000
DECIMAL: dict[str, Any] = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def long(value: int) -> bytes:
    """A number of Avro."""
    found = bytearray()
    value <<= 1
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        # Three bytes that would be 45 GB of text.
        (
            {
                "type": "array",
                "items": {"type": "record", "name": "R", "fields": [{"name": LONG, "type": "null"}]},
            },
            long(50_000) + b"\0",
            "names",
        ),
        (
            {"type": "array", "items": {"type": "enum", "name": "E", "symbols": [LONG]}},
            long(50_000) + b"\0" * 50_001,
            "names",
        ),
        # As text, a number of 200,000 bytes takes 13 s.
        (DECIMAL, long(200_000) + b"\x7f" * 200_000, "decimal"),
        (
            {"type": "fixed", "name": "F", "size": 200_000, "logicalType": "decimal", "precision": 9},
            b"\x7f" * 200_000,
            "decimal",
        ),
        ({"type": "fixed", "name": "F", "size": "many"}, b"\0", "TypeError"),
        ({"type": "fixed", "name": "F", "size": -1}, b"\0", "too early"),
    ],
)
def test_small_records_of_avro_that_are_large_as_text_are_refused(
    schema: dict[str, Any], data: bytes, why: str
) -> None:
    began_s = time.process_time()
    with pytest.raises(Undecodable, match=why):
        AvroSchema(json.dumps(schema)).as_json(data)
    assert time.process_time() - began_s < 2


def test_decimals_up_to_the_bound_are_shown() -> None:
    data = b"\x01" + bytes(DECIMAL_BYTES_MAX - 1)
    digits = str(1 << 8 * (DECIMAL_BYTES_MAX - 1))
    found = AvroSchema(json.dumps(DECIMAL | {"precision": 2_000})).as_json(long(len(data)) + data)
    assert json.loads(found) == f"{digits[:-2]}.{digits[-2:]}"


@pytest.mark.parametrize("inner", [False, True])
def test_a_schema_that_says_the_library_has_checked_it_is_refused(inner: bool) -> None:
    schema: dict[str, Any] = {"__fastavro_parsed": True, "__named_schemas": {}, "type": "int"}
    if inner:
        schema = {"type": "array", "items": schema}
    with pytest.raises(Undecodable, match="no member"):
        AvroSchema(json.dumps(schema))


def test_a_long_name_of_a_schema_does_not_make_a_long_note(tmp_path: Path) -> None:
    schema = json.dumps({"type": "record", "name": LONG, "fields": [{"name": "a", "type": "int"}]})
    (tmp_path / "t-value.avsc").write_text(schema)
    decoder = Decoder(str(tmp_path))
    note = decoder.decode(avro(schema, {"a": 1}), topic="t", part="value").note
    assert len(note) == REASON_MAX
    (tmp_path / "e-value.avsc").write_text(json.dumps({"type": "enum", "name": LONG, "symbols": ["A"]}))
    with pytest.raises(Undecodable) as fault:
        decoder.decode(b"\x04", topic="e", part="value")
    assert len(str(fault.value)) <= REASON_MAX


FIELD = descriptor_pb2.FieldDescriptorProto


def tree(name: str = "child") -> descriptor_pb2.FileDescriptorProto:
    """A message with messages of its kind, flags, symbols, and a map of messages in it."""
    found = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto3")
    found.enum_type.add(name="E").value.add(name="s" * 10_000, number=0)
    node = found.message_type.add(name="Node")
    entry = node.nested_type.add(name="ByKeyEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_INT32, label=FIELD.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=FIELD.TYPE_MESSAGE, type_name=".Node", label=FIELD.LABEL_OPTIONAL
    )
    for number, (field, kind, type_name) in enumerate(
        [
            (name, FIELD.TYPE_MESSAGE, ".Node"),
            ("flags", FIELD.TYPE_BOOL, None),
            ("symbols", FIELD.TYPE_ENUM, ".E"),
            ("by_key", FIELD.TYPE_MESSAGE, ".Node.ByKeyEntry"),
        ],
        1,
    ):
        node.field.add(name=field, number=number, type=kind, type_name=type_name, label=FIELD.LABEL_REPEATED)
    return found


def with_length(number: int, content: bytes) -> bytes:
    length, size = bytearray(), len(content)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("child", b"\x0a\0" * 500_000, "more than 100000 values"),
        ("child", with_length(2, b"\1" * 1_000_000), "more than 100000 values"),
        ("child", with_length(3, b"\0" * 50_000), "names"),
        ("n" * 50_000, with_length(1, b"\x0a\0") * 5_000, "names"),
        ("child", with_length(4, b"\x08\1\x12\x02\x12\0") + b"\x22\x04\x08\x02\x12\0" * 1, ""),
    ],
)
def test_small_messages_of_protobuf_that_are_large_as_text_are_refused(
    name: str, data: bytes, why: str
) -> None:
    schema = ProtobufSchema(tree(name).SerializeToString(), is_one_file=True)
    if not why:
        assert json.loads(schema.as_json(data)) == {"by_key": {"1": {}, "2": {}}}
        return
    began_s = time.process_time()
    with pytest.raises(Undecodable, match=why):
        schema.as_json(data)
    assert time.process_time() - began_s < 5


def any_schema() -> ProtobufSchema:
    found = tree()
    found.dependency.append("google/protobuf/any.proto")
    found.message_type[0].field.add(
        name="any",
        number=9,
        type=FIELD.TYPE_MESSAGE,
        type_name=".google.protobuf.Any",
        label=FIELD.LABEL_OPTIONAL,
    )
    return ProtobufSchema(found.SerializeToString(), is_one_file=True)


def test_what_an_any_holds_is_counted() -> None:
    schema = any_schema()
    small = any_pb2.Any(type_url="x/Node", value=b"\x0a\0")
    assert json.loads(schema.as_json(with_length(9, small.SerializeToString()))) == {
        "any": {"@type": "x/Node", "child": [{}]}
    }
    many = any_pb2.Any(type_url="x/Node", value=b"\x0a\0" * 400_000)
    with pytest.raises(Undecodable, match="values"):
        schema.as_json(with_length(9, many.SerializeToString()))


def test_anys_inside_of_anys_are_bounded() -> None:
    data = b""
    for _ in range(2_000):
        data = any_pb2.Any(type_url="x/google.protobuf.Any", value=data).SerializeToString()
    with pytest.raises(Undecodable, match="deep"):
        any_schema().as_json(with_length(9, data))


def test_ordinary_messages_are_within_the_bounds() -> None:
    schema = ProtobufSchema(order_descriptors())
    found = schema.as_json(order(id=1, name="x" * 900_000, inner={"id": 2}))
    assert json.loads(found) == {"id": "1", "name": "x" * 900_000, "inner": {"id": "2"}}
