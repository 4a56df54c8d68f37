"""Messages of Protobuf by a descriptor set, as `protoc --include_imports --descriptor_set_out=FILE` writes it.

protobuf is imported by the first descriptor set. Its parser bounds how deep messages may be (100), and their size is
bounded by DATA_BYTES_MAX before. What it makes is small. The JSON of it may not be, because it repeats names, so values
and names are counted in between (`protobuf_bounds.py`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from appliance.schemas.faults import DESCRIPTORS_BYTES_MAX, REASON_MAX, Undecodable
from appliance.schemas.protobuf_bounds import check_message

FILES_MAX: Final = 1_000
INDEXES_MAX: Final = 32
_WELL_KNOWN: Final = (
    "any",
    "api",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
    "descriptor",
)
"""Files that every installation of protobuf has. A descriptor set without imports may need them."""


class ProtobufSchema:
    """One descriptor set.

    Args:
        data: a FileDescriptorSet, or with `is_one_file` a FileDescriptorProto.
        message: full name of the message; "" for the first one of the last file, which is the one that protoc was
            given.

    Raises:
        Undecodable: it is none, or has no such message.
    """

    def __init__(self, data: bytes, *, message: str = "", is_one_file: bool = False) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool

        if len(data) > DESCRIPTORS_BYTES_MAX:
            raise Undecodable(f"the descriptors have more than {DESCRIPTORS_BYTES_MAX} bytes")
        try:
            if is_one_file:
                files = [descriptor_pb2.FileDescriptorProto.FromString(data)]
            else:
                files = list(descriptor_pb2.FileDescriptorSet.FromString(data).file)
            if not files or len(files) > FILES_MAX:
                raise Undecodable(f"a descriptor set has 1 to {FILES_MAX} files, and not {len(files)}")
            self._pool: Any = descriptor_pool.DescriptorPool()
            self._add(files)
            self._file: Any = files[-1]
            self.name = message or self._name_at([0])
            self._pool.FindMessageTypeByName(self.name)
        except Undecodable:
            raise
        except Exception as error:  # a descriptor of a stranger makes the library raise anything
            raise Undecodable(
                f"the descriptors cannot be read: {type(error).__name__}: {error}"[:REASON_MAX]
            ) from None

    def _add(self, files: list[Any]) -> None:
        there = {each.name for each in files}
        needed = {name for each in files for name in each.dependency} - there
        for stem in _WELL_KNOWN:
            name = f"google/protobuf/{stem}.proto"
            if name in needed or (stem in {"any", "source_context"} and needed):
                module: Any = import_module(f"google.protobuf.{stem}_pb2")
                self._pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        left = {each.name: each for each in files}
        while left:
            # A file comes behind those that it imports, in whatever order they are.
            ready = [each for each in left.values() if not any(name in left for name in each.dependency)]
            if not ready:
                raise Undecodable("the files of the descriptor set import each other in a circle")
            for each in ready:
                self._pool.AddSerializedFile(each.SerializeToString())
                del left[each.name]

    def _name_at(self, indexes: list[int]) -> str:
        """Return the full name of a message by its place in the file, and in the messages around it."""
        messages, parts = self._file.message_type, [self._file.package] if self._file.package else []
        for index in indexes:
            if not 0 <= index < len(messages):
                raise Undecodable(f"the file has no message {'.'.join(map(str, indexes))}")
            parts.append(messages[index].name)
            messages = messages[index].nested_type
        return ".".join(parts)

    def as_json(self, data: bytes, *, name: str = "") -> str:
        """Return one message as JSON.

        Raises:
            Undecodable: the bytes are no such message.
        """
        from google.protobuf import json_format, message_factory

        try:
            made = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name or self.name))()
            made.ParseFromString(data)
            check_message(made, self._pool)
            found: str = json_format.MessageToJson(
                made,
                preserving_proto_field_name=True,
                indent=None,
                ensure_ascii=False,
                descriptor_pool=self._pool,
            )
            return found
        except Undecodable:
            raise
        except Exception as error:  # DecodeError; an Any of an unknown type
            raise Undecodable(f"{type(error).__name__}: {error}"[:REASON_MAX]) from None

    def of_confluent(self, data: bytes) -> tuple[str, bytes]:
        """Return the name of the message and its bytes, of what is behind magic and id in Confluent's format.

        The message's place in its file comes first: a count and so many indexes, zigzag numbers. A single 0 stands for
        the first message.

        Raises:
            Undecodable: it is not so.
        """
        count, at = _zigzag(data, 0)
        if not 0 <= count <= INDEXES_MAX:
            raise Undecodable(f"{count} indexes of a message")
        indexes = []
        for _ in range(count):
            index, at = _zigzag(data, at)
            indexes.append(index)
        return self._name_at(indexes or [0]), data[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(5):
        if at + index >= len(data):
            break
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at + index + 1
    raise Undecodable("the indexes of the message cannot be read")
