"""A conversation with one broker in raw requests, kept as lines: request, answer.

A producer id is told by its place in the order in which they were given out, a time as `now`, a very long string as its
first letter and its length. Each answer is encoded again; where that gives other bytes, the line says so. So equal
lines stand for equal bytes, but for the values above and for the order of what Kafka keeps in sets.
A line of Produce says: error, base offset, log start offset, message, record errors.
"""

from __future__ import annotations

import json
import struct
import time
from typing import Any, Final

import msgspec

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_transactions import DescribeTransactionsRequest
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartition,
    TxnOffsetCommitRequest,
    TxnOffsetCommitTopic,
)
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import decode_response, encode_request, encode_response
from appliance.protocol.primitives import compact_octets_bytes, compact_string_bytes, uvarint_at
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.record import Record, encode_batch
from tests.clients.play import within
from tests.support.raw_fetch import is_served
from tests.support.wire import ConnectionEnded, WireSocket, nullable_string
from tests.system.raw import (
    Produced,
    ask,
    create_topic,
    flexible_produce_body,
    produce_body,
    read_produced,
)

TOPIC: Final = "t"
GROUP: Final = "g"
A_RECORD: Final = Record(b"value")
TOO_LARGE: Final = Record(bytes(1_000))
COMES: Final = {14, 15, 16, 51}
"""A coordinator that loads, and a transaction whose markers are on their way: asked again."""
LONG: Final = 100
LONG_NAME: Final = "a-very-long-name"
FLEXIBLE: Final = 9
UNKNOWN_TOPIC: Final = 3

INIT: Final = ApiKey.INIT_PRODUCER_ID
ADD: Final = ApiKey.ADD_PARTITIONS_TO_TXN
ADD_OFFSETS: Final = ApiKey.ADD_OFFSETS_TO_TXN
END: Final = ApiKey.END_TXN
COMMIT_OFFSETS: Final = ApiKey.TXN_OFFSET_COMMIT
DESCRIBE: Final = ApiKey.DESCRIBE_TRANSACTIONS

_ANSWER: Final = struct.Struct(">hqqq")


class Conversation:
    """Asks one broker and keeps its answers as lines."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lines: list[str] = []
        self._ids: dict[int, str] = {}
        self.name_bytes = len(LONG_NAME)
        """As long is what is written for LONG_NAME."""
        self.patience_s = 15.0

    def ask(self, what: str, api: ApiKey, request: Any, version: int) -> Any:
        """Asks until the answer is none that only says `later`, for `patience_s`."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                answer, as_encoded = self._once(api, request, version)
            except ConnectionEnded:
                self.lines.append(f"{what} | {api.name} v{version} | closed")
                return None
            told = msgspec.to_builtins(answer)
            if not COMES & codes(told) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self.lines.append(f"{what} | {api.name} v{version} | {json.dumps(self._plain(told))}{as_encoded}")
        return answer

    def _once(self, api: ApiKey, request: Any, version: int) -> tuple[Any, str]:
        """The answer, and whether it has other bytes than it would have here."""
        with WireSocket(self.port) as connection:
            connection.send_frame(
                self._lengthened(encode_request(api, version, request, 77, client_id="raw")[4:])
            )
            body = connection.read_frame()
        frame = SIZE.pack(len(body)) + body
        _, answer = decode_response(api, version, memoryview(frame))
        same = encode_response(api, version, answer, 77) == frame
        return answer, "" if same else f" IN OTHER BYTES {frame.hex()}"

    def init(
        self, what: str, transactional_id: str | None, version: int = 4, **fields: Any
    ) -> tuple[int, int]:
        fields = {"transaction_timeout_ms": 60_000, **fields}
        answer = self.ask(what, INIT, InitProducerIdRequest(transactional_id, **fields), version)
        return (-1, -1) if answer is None else (answer.producer_id, answer.producer_epoch)

    def add(self, what: str, name: str, producer: tuple[int, int], *topics: str, version: int = 3) -> None:
        wanted = tuple(AddPartitionsToTxnTopic(topic, (0, 1)) for topic in topics)
        request = AddPartitionsToTxnRequest((), name, *producer, wanted)
        self.ask(what, ADD, request, version)

    def verify(self, what: str, name: str, producer: tuple[int, int], topic: str, partition: int) -> None:
        wanted = (AddPartitionsToTxnTopic(topic, (partition,)),)
        request = AddPartitionsToTxnRequest((AddPartitionsToTxnTransaction(name, *producer, True, wanted),))
        self.ask(what, ADD, request, 5)

    def end(
        self, what: str, name: str, producer: tuple[int, int], commit: bool, version: int = 4
    ) -> tuple[int, int]:
        answer = self.ask(what, END, EndTxnRequest(name, *producer, commit), version)
        while answer.error_code == 0 and self._is_under_way(name):
            time.sleep(0.02)  # its markers are on their way, and what is asked next must not meet them
        return answer.producer_id, answer.producer_epoch

    def _is_under_way(self, name: str) -> bool:
        with WireSocket(self.port) as connection:
            answer = ask(connection, DESCRIBE, DescribeTransactionsRequest((name,)), version=0)
        state: str = answer.transaction_states[0].transaction_state
        return state.startswith("Prepare")

    def offsets(
        self,
        what: str,
        name: str,
        producer: tuple[int, int],
        *,
        version: int = 4,
        topic: str = TOPIC,
        group: str = GROUP,
        **member: Any,
    ) -> None:
        wanted = (TxnOffsetCommitTopic(topic, (TxnOffsetCommitPartition(0, 5, ""),)),)
        request = TxnOffsetCommitRequest(name, group, *producer, wanted, **member)
        self.ask(what, COMMIT_OFFSETS, request, version)

    def produce(
        self,
        what: str,
        name: str | None,
        producer: tuple[int, int],
        sequence: int,
        *,
        version: int,
        transactional: bool = True,
        topic: str = TOPIC,
        partition: int = 0,
        record: Record = A_RECORD,
        is_damaged: bool = False,
        attributes: int = 0,
        connection: WireSocket | None = None,
    ) -> None:
        """One record, on a connection of its own or on `connection`; what the answer says of the partition."""
        records = encode_batch(
            [record],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=attributes | (TRANSACTIONAL if transactional else 0),
        )
        if is_damaged:
            records = records[:-1] + bytes([records[-1] ^ 1])
        if version < FLEXIBLE:
            body = nullable_string(name) + produce_body(topic, records, partition=partition)[2:]
        else:
            body = flexible_produce_body(name, topic, records, partition=partition)
        used = connection or WireSocket(self.port)
        try:
            used.send_request(0, version, self._lengthened(body), flexible=version >= FLEXIBLE)
            answer = used.read_frame()
        except ConnectionEnded:
            self.lines.append(f"{what} | PRODUCE v{version} | closed")
            return
        finally:
            if connection is None:
                used.close()
        told = read_produced(answer) if version < FLEXIBLE else _read_flexible(answer, topic)
        said = f"{told.error} {told.base_offset} {told.log_start} {told.message} {told.record_errors}"
        self.lines.append(f"{what} | PRODUCE v{version} | {said}")

    def produce_too_large(
        self, what: str, name: str, producer: tuple[int, int], sequence: int, version: int
    ) -> None:
        """The error alone: the appliance says in words what was too large, and Kafka says nothing."""
        self.produce_unfit(what, name, producer, sequence, version=version, topic="small", record=TOO_LARGE)

    def produce_unfit(
        self, what: str, name: str | None, producer: tuple[int, int], sequence: int, **batch: Any
    ) -> None:
        """The error alone: the appliance says in other words than Kafka what is wrong with a record."""
        self.produce(what, name, producer, sequence, **batch)
        asked, api, said = self.lines.pop().split(" | ")
        self.lines.append(f"{asked} | {api} | {said.split()[0]}")

    def _lengthened(self, body: bytes) -> bytes:
        """A request of a flexible version with LONG_NAME as long as it is to be; no encoder of ours writes it."""
        return body.replace(
            compact_octets_bytes(LONG_NAME.encode()), compact_octets_bytes(b"y" * self.name_bytes)
        )

    def connect(self) -> WireSocket:
        """A connection for several requests."""
        return WireSocket(self.port)

    def wait_until_aborted(self, *names: str) -> None:
        """Until their transactions' time is over and their markers are written."""

        def are_aborted() -> bool:
            answer = self.quietly(DESCRIBE, DescribeTransactionsRequest(names))
            return {each.transaction_state for each in answer.transaction_states} == {"CompleteAbort"}

        assert within(40, are_aborted)

    def create(self, topic: str) -> None:
        """A topic, which is served when this returns."""
        assert create_topic(self.port, topic, partitions=2) == 0
        assert within(20, lambda: is_served(f"127.0.0.1:{self.port}", topic, 2))

    def delete(self, topic: str) -> None:
        """Delete a topic; the coordinator knows of it when this returns."""
        answer = self.quietly(ApiKey.DELETE_TOPICS, DeleteTopicsRequest((TopicSelector(topic),), 30_000), 5)
        assert [each.error_code for each in answer.responses] == [0]
        wanted = AddPartitionsToTxnTransaction("nobody", 1, 0, True, (AddPartitionsToTxnTopic(topic, (0,)),))

        def is_gone() -> bool:
            return UNKNOWN_TOPIC in codes(
                msgspec.to_builtins(self.quietly(ADD, AddPartitionsToTxnRequest((wanted,)), 5))
            )

        assert within(20, is_gone)

    def join(self, group: str) -> tuple[str, int]:
        """A member of a new group, and its generation."""
        joining = JoinGroupRequest(group, 60_000, "", "consumer", (JoinGroupProtocol("range", b""),), 60_000)
        member: str = self.quietly(ApiKey.JOIN_GROUP, joining, 4).member_id
        answer = self.quietly(ApiKey.JOIN_GROUP, msgspec.structs.replace(joining, member_id=member), 4)
        assert answer.error_code == 0
        assignments = (SyncGroupAssignment(member, b""),)
        synced = self.quietly(
            ApiKey.SYNC_GROUP,
            SyncGroupRequest(group, answer.generation_id, member, assignments=assignments),
            3,
        )
        assert synced.error_code == 0
        return member, answer.generation_id

    def quietly(self, api: ApiKey, request: Any, version: int | None = None) -> Any:
        """An answer that is not kept."""
        with WireSocket(self.port) as connection:
            return ask(connection, api, request, version=version)

    def _plain(self, told: Any, name: str = "") -> Any:
        if isinstance(told, dict):
            return {key: self._plain(value, key) for key, value in told.items()}
        if isinstance(told, list | tuple):
            return sorted(
                (self._plain(each, name) for each in told), key=json.dumps
            )  # Kafka's order is that of a set
        if name == "producer_id" and told >= 0:
            return self._ids.setdefault(told, f"id {len(self._ids)}")
        if name == "transaction_start_time_ms" and told > 0:
            return "now"
        if isinstance(told, str) and len(told) > LONG:
            return f"{told[0]} * {len(told)}"
        return told


def _read_flexible(answer: bytes, topic: str) -> Produced:
    """The one partition of a Produce answer of version 9 to 12."""
    position = 4 + len(compact_string_bytes(topic)) + 7
    error, base_offset, _, log_start = _ANSWER.unpack_from(answer, position)
    count, position = _read_uvarint(answer, position + _ANSWER.size)
    record_errors: dict[int, str | None] = {}
    for _ in range(count - 1):
        (index,) = struct.unpack_from(">i", answer, position)
        record_errors[index], position = _read_compact(answer, position + 4)
        position += 1
    text, _ = _read_compact(answer, position)
    return Produced(error, base_offset, text, record_errors, log_start)


def _read_compact(answer: bytes, position: int) -> tuple[str | None, int]:
    """A compact nullable string, and the position behind it."""
    length, position = _read_uvarint(answer, position)
    if not length:
        return None, position
    return answer[position : position + length - 1].decode(), position + length - 1


def _read_uvarint(answer: bytes, position: int) -> tuple[int, int]:
    return uvarint_at(memoryview(answer), position, len(answer))


def codes(told: Any) -> set[int]:
    """The error codes anywhere in an answer."""
    if isinstance(told, dict):
        own = {value for key, value in told.items() if key.endswith("error_code")}
        return own.union(*map(codes, told.values()))
    if isinstance(told, list | tuple):
        return set().union(*map(codes, told))
    return set()
