"""Schemas and records of Avro and Protobuf, made by the libraries themselves."""

from __future__ import annotations

import io
import json
from typing import Any, Final

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ORDER_AVSC: Final = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
)


def avro(schema: str, value: Any) -> bytes:
    """The binary encoding of a value."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema), {}), value)
    return out.getvalue()


def confluent_avro(schema_id: int, value: Any, schema: str = ORDER_AVSC) -> bytes:
    """A value as Confluent's serializer writes it."""
    return b"\0" + schema_id.to_bytes(4, "big") + avro(schema, value)


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """`shop.Order` with id, name, and a list of orders; `shop.Other`; a message inside of it."""
    found = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    field = descriptor_pb2.FieldDescriptorProto
    order = found.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    order.field.add(name="name", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    order.field.add(
        name="inner", number=3, type=field.TYPE_MESSAGE, type_name=".shop.Order", label=field.LABEL_OPTIONAL
    )
    order.field.add(
        name="at",
        number=4,
        type=field.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=field.LABEL_OPTIONAL,
    )
    other = found.message_type.add(name="Other")
    inside = other.nested_type.add(name="Inside")
    inside.field.add(name="text", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    return found


def order_descriptors() -> bytes:
    """What `protoc --descriptor_set_out` writes without imports."""
    return bytes(descriptor_pb2.FileDescriptorSet(file=[order_file()]).SerializeToString())


def order(**fields: Any) -> bytes:
    """The bytes of a `shop.Order`."""
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(order_file().SerializeToString())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return bytes(made(**fields).SerializeToString())


def confluent_protobuf(schema_id: int, number: int, name: str) -> bytes:
    """An order as Confluent's serializer writes it: a single 0 names the first message."""
    return b"\0" + schema_id.to_bytes(4, "big") + b"\0" + order(id=number, name=name)
