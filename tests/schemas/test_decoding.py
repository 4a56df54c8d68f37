"""Records in Avro and Protobuf: by ids, fingerprints and topics; and what hostile ones cost."""

from __future__ import annotations

import base64
import json
import math
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest

from appliance.schemas.decoder import AUTO, AVRO, PROTOBUF, Decoder
from appliance.schemas.faults import DATA_BYTES_MAX, NoSchema, Undecodable
from appliance.schemas.wire import fields_as_json
from tests.schemas.samples import (
    ORDER_AVSC,
    avro,
    confluent_avro,
    confluent_protobuf,
    order,
    order_descriptors,
    order_file,
)

LINKED = json.dumps(
    {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
)
NULLS = json.dumps({"type": "array", "items": "null"})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "7.avsc").write_text(ORDER_AVSC)
    (tmp_path / "8.desc").write_bytes(order_descriptors())
    return tmp_path


@pytest.fixture
def decoder(directory: Path) -> Decoder:
    return Decoder(str(directory))


def decoded(decoder: Decoder, data: bytes, *, topic: str = "t", form: str = AUTO) -> Any:
    return json.loads(decoder.decode(data, topic=topic, part="value", form=form).json)


def test_confluents_format_names_the_schema(decoder: Decoder) -> None:
    value = {"id": 1, "name": "ü"}
    found = decoder.decode(confluent_avro(7, value), topic="t", part="value")
    assert (json.loads(found.json), found.form, found.note) == (value, AVRO, "Avro, schema 7: shop.Order")
    found = decoder.decode(confluent_protobuf(8, 2, "b"), topic="t", part="value")
    assert (json.loads(found.json), found.form) == ({"id": "2", "name": "b"}, PROTOBUF)
    assert found.note == "Protobuf, schema 8: shop.Order"


def test_confluents_indexes_name_a_message_inside_of_another(decoder: Decoder) -> None:
    # Two indexes, 1 and 0: the first message inside of the second one.
    data = b"\0\0\0\0\x08" + b"\x04\x02\x00" + b"\x0a\x02hi"
    found = decoder.decode(data, topic="t", part="value")
    assert (json.loads(found.json), found.note) == ({"text": "hi"}, "Protobuf, schema 8: shop.Other.Inside")


def test_single_objects_name_the_schema_by_its_fingerprint(decoder: Decoder) -> None:
    parsed = fastavro.parse_schema(json.loads(ORDER_AVSC), {})
    mark = bytes.fromhex(
        fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(parsed), "CRC-64-AVRO")
    )
    data = b"\xc3\x01" + mark + avro(ORDER_AVSC, {"id": 5, "name": "x"})
    assert decoded(decoder, data) == {"id": 5, "name": "x"}
    with pytest.raises(NoSchema, match="fingerprint 0000"):
        decoder.decode(b"\xc3\x01" + bytes(8), topic="t", part="value", form=AVRO)


def test_the_fingerprint_is_that_of_the_specification(tmp_path: Path) -> None:
    # The value that Avro's Java library computes for "int".
    (tmp_path / "n-value.avsc").write_text('"int"')
    mark = (0x7275D51A3F395C8F).to_bytes(8, "little")
    assert decoded(Decoder(str(tmp_path)), b"\xc3\x01" + mark + b"\x54") == 42


def test_a_topic_has_schemas_of_its_own(directory: Path) -> None:
    (directory / "plain-value.avsc").write_text(ORDER_AVSC)
    (directory / "plain-key.avsc").write_text('"string"')
    (directory / "proto-value.desc").write_bytes(order_descriptors())
    (directory / "inside-value.desc").write_bytes(order_descriptors())
    (directory / "inside-value.message").write_text("shop.Other.Inside\n")
    decoder = Decoder(str(directory))
    assert decoded(decoder, avro(ORDER_AVSC, {"id": 1, "name": "a"}), topic="plain") == {"id": 1, "name": "a"}
    assert json.loads(decoder.decode(b"\x04hi", topic="plain", part="key").json) == "hi"
    assert decoded(decoder, order(id=3), topic="proto") == {"id": "3"}
    assert decoded(decoder, b"\x0a\x02hi", topic="inside") == {"text": "hi"}
    with pytest.raises(NoSchema):
        decoder.decode(b"\x04hi", topic="other", part="key")


def test_a_schema_that_changes_is_read_again(directory: Path) -> None:
    decoder = Decoder(str(directory))
    (directory / "t-value.avsc").write_text('"int"')
    assert decoded(decoder, b"\x02") == 1
    (directory / "t-value.avsc").write_text('{"type":"array","items":"int"}')
    assert decoded(decoder, b"\x02\x02\x00") == [1]


def test_logical_types_and_bytes_are_readable(tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "raw", "type": "bytes"},
        ],
    }
    (tmp_path / "t-value.avsc").write_text(json.dumps(schema))
    data = b"\x00" + b"\x04\x30\x39" + b"\x04\xff\x00"
    assert decoded(Decoder(str(tmp_path)), data) == {
        "at": "1970-01-01 00:00:00+00:00",
        "price": "123.45",
        "raw": "ÿ\0",
    }
    far = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x04\x30\x39" + b"\x00"
    with pytest.raises(Undecodable, match="does not fit"):
        decoded(Decoder(str(tmp_path)), far)


def test_numbers_that_json_does_not_have_are_text(tmp_path: Path) -> None:
    schema = {"type": "map", "values": {"type": "array", "items": ["double", "float", "int"]}}
    values = {"a": [math.nan, math.inf, -math.inf, 1.5, 7]}
    (tmp_path / "t-value.avsc").write_text(json.dumps(schema))
    found = decoded(Decoder(str(tmp_path)), avro(json.dumps(schema), values))
    assert found == {"a": ["NaN", "Infinity", "-Infinity", 1.5, 7]}


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        (LINKED, b"\x02" * 500_000 + b"\x00", "deep"),
        (NULLS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00", "more than"),
        (NULLS, b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x02\x00", "more than"),
        ('"string"', b"\xfe\xff\xff\xff\x0f", "too early"),
        ('"string"', b"\x01", "too early"),
        ('["null","int"]', b"\x06", "no branch"),
        ('"int"', b"\x02\x02", "left behind"),
        ('"long"', b"\xff" * 11, "64 bits"),
        ('{"type":"enum","name":"E","symbols":["A"]}', b"\x04", "none of its symbols"),
        ("[" * 100_000, b"", "deep|cannot be read"),
        ('{"type":"record"', b"", "cannot be read"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"Missing"}]}', b"", "cannot be read"),
        ('{"type":"fixed","name":"F","size":99999999}', b"\0", "too early"),
        ("7", b"", "cannot be read"),
    ],
)
def test_hostile_schemas_and_records_of_avro_cost_little(
    tmp_path: Path, schema: str, data: bytes, why: str
) -> None:
    (tmp_path / "t-value.avsc").write_text(schema)
    decoder = Decoder(str(tmp_path))
    tracemalloc.start()
    began_s = time.monotonic()
    try:
        with pytest.raises(Undecodable, match=why):
            decoder.decode(data, topic="t", part="value", form=AVRO)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began_s < 10


def test_deep_messages_of_protobuf_are_refused(decoder: Decoder) -> None:
    data = b""
    for _ in range(3_000):
        data = b"\x1a" + varint(len(data)) + data
    with pytest.raises(Undecodable, match="does not fit"):
        decoder.decode(b"\0\0\0\0\x08\0" + data, topic="t", part="value")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("indexes", [b"\x7f", b"\x04\x08\x00", b"\x02\x01", b"\xff\xff\xff\xff\xff", b""])
def test_indexes_that_name_no_message_are_refused(decoder: Decoder, indexes: bytes) -> None:
    with pytest.raises(Undecodable):
        decoder.decode(b"\0\0\0\0\x08" + indexes, topic="t", part="value")


def test_descriptors_that_are_none_are_refused(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"\xff" * 50, order_descriptors()[:40])):
        (tmp_path / f"t{number}-value.desc").write_bytes(content)
        with pytest.raises(Undecodable):
            Decoder(str(tmp_path)).decode(b"\x08\x01", topic=f"t{number}", part="value", form=PROTOBUF)


def test_protobuf_without_a_schema_shows_numbers_and_wire_types() -> None:
    found = Decoder().decode(
        order(id=150, name="Zoë", inner={"id": 3}), topic="t", part="value", form=PROTOBUF
    )
    assert json.loads(found.json) == [
        ["1: varint", 150],
        ["2: text", "Zoë"],
        ["3: message", [["1: varint", 3]]],
    ]
    assert "without a schema" in found.note
    assert json.loads(fields_as_json(b"\x0d\x01\0\0\0\x09\x02\0\0\0\0\0\0\0\x12\x02\xff\xfe")) == [
        ["1: 32-bit", 1],
        ["1: 64-bit", 2],
        ["2: bytes", "fffe"],
    ]


def test_hostile_fields_cost_little() -> None:
    data = b"\xff\x01"
    for _ in range(12):
        data = b"\x0a" + varint(len(data)) + data
    began_s = time.monotonic()
    for hostile in (data * 5_000, b"\x0a\x02\x0a\x00" * 200_000, b"\x08" + b"\xff" * 11, b"\x00", b"\x0b"):
        try:
            fields_as_json(hostile[:DATA_BYTES_MAX])
        except Undecodable:
            continue
    assert time.monotonic() - began_s < 10


def test_large_records_are_not_decoded(decoder: Decoder) -> None:
    with pytest.raises(Undecodable, match="more than"):
        decoder.decode(bytes(DATA_BYTES_MAX + 1), topic="t", part="value")


def test_a_name_of_a_topic_leads_to_no_other_directory(tmp_path: Path) -> None:
    (tmp_path / "secret-value.avsc").write_text('"int"')
    (tmp_path / "inner").mkdir()
    with pytest.raises(NoSchema):
        Decoder(str(tmp_path / "inner")).decode(b"\x02", topic="../secret", part="value")


class Registry(HTTPServer):
    """Answers as Confluent's schema registry does (docs.confluent.io, Schema Registry API)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, Any]] = {
            "/schemas/ids/1": (200, {"schema": ORDER_AVSC}),
            "/schemas/ids/2": (200, {"schema": "syntax…", "schemaType": "PROTOBUF"}),
            "/schemas/ids/2?format=serialized": (
                200,
                {"schema": base64.b64encode(order_file().SerializeToString()).decode()},
            ),
            "/schemas/ids/3": (200, {"schema": "{}", "schemaType": "JSON"}),
            "/schemas/ids/4": (302, {}),
            "/schemas/ids/5": (200, ["no object"]),
            "/schemas/ids/6": (200, {"schema": 6}),
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        status, body = self.server.answers.get(self.path, (404, {"error_code": 40403}))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"{self.server.url}/schemas/ids/1")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def test_a_registry_is_asked_once_for_each_id(registry: Registry) -> None:
    decoder = Decoder(registry=registry.url)
    for number in range(3):
        assert decoded(decoder, confluent_avro(1, {"id": number, "name": ""}))["id"] == number
    assert decoded(decoder, confluent_protobuf(2, 9, "n")) == {"id": "9", "name": "n"}
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/2?format=serialized"]


@pytest.mark.parametrize(
    ("schema_id", "why"),
    [(3, "type JSON"), (4, "status 302"), (5, "no object"), (6, "schema 6"), (99, "is none")],
)
def test_a_registry_that_has_no_use_is_told_to_the_person(
    registry: Registry, schema_id: int, why: str
) -> None:
    decoder = Decoder(registry=registry.url)
    for _ in range(2):
        with pytest.raises(Undecodable, match=why):
            decoder.decode(confluent_avro(schema_id, {"id": 1, "name": ""}), topic="t", part="value")
    assert len(registry.asked) == 1


def test_a_registry_that_does_not_answer_costs_one_wait(registry: Registry) -> None:
    registry.shutdown()
    registry.socket.close()
    decoder = Decoder(registry=registry.url)
    began_s = time.monotonic()
    for schema_id in range(50):
        with pytest.raises(Undecodable, match="does not answer"):
            decoder.decode(confluent_avro(schema_id, {"id": 1, "name": ""}), topic="t", part="value")
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:8081", "http://", "http://u:p@h"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        Decoder(registry=url)
