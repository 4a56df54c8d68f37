"""Requests of transactions that no library sends, and what Apache Kafka 4.3.1 answers to each.

The answers lie in transaction_answers.txt, one a line.
`APPLIANCE_JUDGE=kafka python -m tests.system.transaction_answers` writes them again.
A producer id is told by its place in the order in which they were given out, a time as `now`, a very long string as its
first letter and its length. Each answer is encoded again; where that gives other bytes, the line says so. So equal
lines stand for equal bytes, but for the values above and for the order of what Kafka keeps in sets.
A line of Produce says: error, base offset, log start offset, message, record errors.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
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
from appliance.protocol.apis.list_transactions import ListTransactionsRequest
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartition,
    TxnOffsetCommitRequest,
    TxnOffsetCommitTopic,
)
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import decode_response, encode_request, encode_response
from appliance.protocol.primitives import compact_octets_bytes, compact_string_bytes
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.record import Record, encode_batch
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.play import within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.support.judge import ENDS_AT_ONCE, running_broker
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

RECORDED: Final = Path(__file__).with_name("transaction_answers.txt")
TOPIC: Final = "t"
GROUP: Final = "g"
PARTITIONS: Final = 3
COMES: Final = {14, 15, 16, 51}
"""A coordinator that loads, and a transaction whose markers are on their way: asked again."""

INIT: Final = ApiKey.INIT_PRODUCER_ID
ADD: Final = ApiKey.ADD_PARTITIONS_TO_TXN
ADD_OFFSETS: Final = ApiKey.ADD_OFFSETS_TO_TXN
END: Final = ApiKey.END_TXN
COMMIT_OFFSETS: Final = ApiKey.TXN_OFFSET_COMMIT
MARKERS: Final = ApiKey.WRITE_TXN_MARKERS
DESCRIBE: Final = ApiKey.DESCRIBE_TRANSACTIONS
LIST: Final = ApiKey.LIST_TRANSACTIONS


class Conversation:
    """Asks one broker and keeps its answers as lines."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lines: list[str] = []
        self._ids: dict[int, str] = {}
        self.name_bytes = len(LONG_NAME)
        """As long is what is written for LONG_NAME."""

    def ask(self, what: str, api: ApiKey, request: Any, version: int) -> Any:
        """Asks until the answer is none that only says `later`."""
        deadline = time.monotonic() + 15
        while True:
            try:
                answer, as_encoded = self._once(api, request, version)
            except ConnectionEnded:
                self.lines.append(f"{what} | {api.name} v{version} | closed")
                return None
            told = msgspec.to_builtins(answer)
            if not COMES & _codes(told) or time.monotonic() > deadline:
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
        value: bytes = b"value",
        connection: WireSocket | None = None,
    ) -> None:
        """One record, on a connection of its own or on `connection`; what the answer says of the partition."""
        records = encode_batch(
            [Record(value)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL if transactional else 0,
        )
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
        self.produce(what, name, producer, sequence, version=version, topic="small", value=bytes(1_000))
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
            return UNKNOWN_TOPIC in _codes(
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


FLEXIBLE: Final = 9
LONG: Final = 100
LONG_NAME: Final = "a-very-long-name"
UNKNOWN_TOPIC: Final = 3
_ANSWER: Final = struct.Struct(">hqqq")


def _read_flexible(answer: bytes, topic: str) -> Produced:
    """The one partition of a Produce answer of version 9 to 12, which names no records."""
    position = 4 + len(compact_string_bytes(topic)) + 7
    error, base_offset, _, log_start = _ANSWER.unpack_from(answer, position)
    position += _ANSWER.size
    assert answer[position] == 1, "records are named"
    length = answer[position + 1]
    text = answer[position + 2 : position + 1 + length].decode() if length else None
    return Produced(error, base_offset, text, {}, log_start)


def _codes(told: Any) -> set[int]:
    """The error codes anywhere in an answer."""
    if isinstance(told, dict):
        own = {value for key, value in told.items() if key.endswith("error_code")}
        return own.union(*map(_codes, told.values()))
    if isinstance(told, list | tuple):
        return set().union(*map(_codes, told))
    return set()


def producer_ids(talk: Conversation) -> None:
    for version in (0, 2, 3, 4, 5):
        talk.init("an empty id", "", version)
        talk.init("no time", "a", version, transaction_timeout_ms=0)
        talk.init("less than no time", "a", version, transaction_timeout_ms=-1)
        talk.init("too much time", "a", version, transaction_timeout_ms=900_001)
    talk.init("a time without an id", None, 4, transaction_timeout_ms=0)
    talk.init("an id without its epoch", "a", 4, producer_id=7)
    talk.init("an epoch without its id", "a", 4, producer_epoch=7)
    talk.init("someone else's id", "a", 4, producer_id=7_777_777, producer_epoch=3)
    first = talk.init("the first", "a", 4)
    talk.init("the first again", "a", 4)
    current = talk.init("its own epoch, an old one", "a", 4, producer_id=first[0], producer_epoch=first[1])
    talk.init("an old epoch, in the old words", "a", 3, producer_id=first[0], producer_epoch=first[1])
    current = talk.init("once more", "a", 4)
    bumped = talk.init("from the current epoch", "a", 4, producer_id=current[0], producer_epoch=current[1])
    talk.init("that again: a retry", "a", 4, producer_id=current[0], producer_epoch=current[1])
    talk.init("an epoch to come", "a", 4, producer_id=bumped[0], producer_epoch=bumped[1] + 5)
    talk.init("a null timeout is the client's", "b", 0, transaction_timeout_ms=1)
    talk.init("as long as an id may be", "x" * 32_767, 4)
    talk.init("of no letter", "\u0000\n\u2028", 4)


def partitions(talk: Conversation) -> None:
    for version in (0, 1, 2, 3):
        talk.add("nobody's id", "nobody", (1, 0), TOPIC, version=version)
    producer = talk.init("a producer", "p")
    newer = producer[0], producer[1] + 1
    for version in (0, 1, 2, 3):
        talk.add("another's id", "p", (producer[0] + 999_999, 0), TOPIC, version=version)
        talk.add("another epoch", "p", newer, TOPIC, version=version)
        talk.add("an older epoch", "p", (producer[0], producer[1] - 1), TOPIC, version=version)
        talk.add("an unknown topic beside a known one", "p", producer, TOPIC, "none", version=version)
    talk.add("nothing at all", "p", producer)
    talk.add("an empty id", "", producer, TOPIC)
    talk.ask(
        "no partition",
        ADD,
        AddPartitionsToTxnRequest((), "p", *producer, (AddPartitionsToTxnTopic(TOPIC),)),
        3,
    )
    beyond = (AddPartitionsToTxnTopic(TOPIC, (0, PARTITIONS)),)
    talk.ask("a partition too many", ADD, AddPartitionsToTxnRequest((), "p", *producer, beyond), 3)
    talk.verify("not even begun", "p", producer, TOPIC, 0)
    talk.add("two", "p", producer, TOPIC)
    talk.add("the same two", "p", producer, TOPIC)
    talk.verify("one that is in it", "p", producer, TOPIC, 1)
    talk.verify("one that is not", "p", producer, TOPIC, 2)
    talk.verify("of an unknown topic", "p", producer, "none", 2)
    talk.verify("with another epoch", "p", newer, TOPIC, 1)
    talk.verify("nobody's", "nobody", producer, TOPIC, 1)
    talk.ask("the transaction", DESCRIBE, DescribeTransactionsRequest(("p", "nobody", "")), 0)
    talk.end("is over", "p", producer, True)
    talk.verify("in one that is over", "p", producer, TOPIC, 1)


def ends(talk: Conversation) -> None:
    for version in (0, 1, 2, 4, 5):
        talk.end("nobody's", "nobody", (1, 0), True, version)
    talk.end("an empty id", "", (1, 0), True)
    for commit in (True, False):
        name = f"end-{commit}"
        producer = talk.init("a producer", name)
        for version in (1, 4):
            talk.end("of nothing, commit", name, producer, True, version)
            talk.end("of nothing, abort", name, producer, False, version)
        talk.add("a partition", name, producer, TOPIC)
        for version in (0, 1, 2, 4):
            talk.end("another epoch", name, (producer[0], producer[1] + 1), commit, version)
            talk.end("another's id", name, (producer[0] + 999_999, 0), commit, version)
        talk.end("the end", name, producer, commit)
        talk.end("the same end", name, producer, commit)
        talk.end("the other end", name, producer, not commit)
    for commit in (True, False):
        name = f"v2-{commit}"
        producer = talk.init("a producer", name, 5)
        talk.end("of nothing, commit", name, producer, True, 5)
        producer = talk.end("of nothing, abort", name, producer, False, 5)
        talk.produce("a record of the new epoch", name, producer, 0, version=12)
        talk.end("an older epoch", name, (producer[0], producer[1] - 1), commit, 5)
        talk.end("an epoch to come", name, (producer[0], producer[1] + 1), commit, 5)
        following = talk.end("the end", name, producer, commit, 5)
        talk.end("the same end: a retry", name, producer, commit, 5)
        talk.end("the other end of that epoch", name, producer, not commit, 5)
        talk.end("commit of nothing", name, following, True, 5)
        talk.end("abort of nothing", name, following, False, 5)
    talk.ask(
        "all", DESCRIBE, DescribeTransactionsRequest(("end-True", "end-False", "v2-True", "v2-False")), 0
    )


def records(talk: Conversation) -> None:
    for version in (8, 12):
        name = f"r{version}"
        talk.init("a producer", name)
        producer = talk.init("its next epoch", name)
        if version < 12:
            talk.produce("before the transaction", name, producer, 0, version=version)
            talk.add("two partitions", name, producer, TOPIC)
            talk.produce("to a partition that is not in it", name, producer, 0, version=version, partition=2)
        talk.produce("the first", name, producer, 0, version=version)
        talk.produce("the first again", name, producer, 0, version=version)
        talk.produce("a gap", name, producer, 5, version=version)
        talk.produce("outside, of the same producer", name, producer, 1, version=version, transactional=False)
        # Before any other epoch is said: Kafka keeps the lowest sequence number of what it has asked for, of any epoch.
        talk.produce("in no one's name, where it is open", None, producer, 1, version=version)
        talk.produce("in another's name, where it is open", "nobody", producer, 1, version=version)
        with talk.connect() as one:
            talk.produce("on one connection", name, producer, 2, version=version, connection=one)
            talk.produce("then in no one's name", None, producer, 3, version=version, connection=one)
            talk.produce(
                "then in another's", "nobody", producer, 0, version=version, partition=1, connection=one
            )
            talk.produce("then a gap", name, producer, 9, version=version, connection=one)
            talk.produce("then the next", name, producer, 3, version=version, connection=one)
        talk.produce("an older epoch", name, (producer[0], producer[1] - 1), 1, version=version)
        talk.produce("a newer epoch", name, (producer[0], producer[1] + 1), 0, version=version)
        talk.produce("in no one's name", None, producer, 0, version=version, partition=2)
        talk.produce("in another's name", "nobody", producer, 0, version=version, partition=1)
        other = talk.init("another producer", f"other-{version}")
        talk.produce("with another's id", name, other, 0, version=version)
        talk.produce("with nobody's id", name, (producer[0] + 999_999, 0), 0, version=version)
        talk.produce("to no partition", name, producer, 0, version=version, partition=PARTITIONS)
        talk.produce("to no topic", name, producer, 0, version=version, topic="none")
        talk.produce(
            "to the transaction log", name, producer, 0, version=version, topic="__transaction_state"
        )
        talk.produce(
            "to the transaction log, outside",
            None,
            (-1, -1),
            -1,
            version=version,
            transactional=False,
            topic="__transaction_state",
        )
        talk.produce("without an epoch", name, (producer[0], -1), 0, version=version)
        talk.end("the end", name, producer, True)
        talk.produce("after the end", name, producer, 1, version=8)
        talk.produce("the first again, after the end", name, producer, 0, version=8)
        talk.add("the next transaction", name, producer, TOPIC)
        talk.end(
            "is empty", name, producer, False
        )  # its marker clears what Kafka keeps of the batches that it refused
        talk.add("the one after", name, producer, TOPIC)
        talk.produce("its first", name, producer, 4, version=8)
        talk.produce("an old one again", name, producer, 1, version=8)
        talk.end("its end", name, producer, False)
    plain = talk.init("a producer without an id", None)
    for version in (8, 12):
        for what, sequence in (("plain", 0), ("plain again", 0), ("plain with a gap", 7)):
            talk.produce(what, None, plain, sequence, version=version, transactional=False, partition=2)
    talk.produce("plain, an older epoch", None, (plain[0], -1), 1, version=8, transactional=False)


def group_offsets(talk: Conversation) -> None:
    for version in (0, 2, 3, 4):
        talk.ask("nobody's", ADD_OFFSETS, AddOffsetsToTxnRequest("nobody", 1, 0, GROUP), version)
    producer = talk.init("a producer", "o")
    newer = producer[0], producer[1] + 1
    for version in (0, 1, 2, 4):
        talk.ask("another epoch", ADD_OFFSETS, AddOffsetsToTxnRequest("o", *newer, GROUP), version)
    talk.ask("of an empty group", ADD_OFFSETS, AddOffsetsToTxnRequest("o", *producer, ""), 4)
    for version in (0, 3, 4):
        talk.offsets("not begun", "o", producer, version=version)
    talk.ask("of a group", ADD_OFFSETS, AddOffsetsToTxnRequest("o", *producer, GROUP), 4)
    for version in (0, 2, 3, 4):
        talk.offsets("of a simple group", "o", producer, version=version)
        talk.offsets("another epoch", "o", newer, version=version)
        talk.offsets("another's id", "o", (producer[0] + 999_999, 0), version=version)
        talk.offsets("of no topic", "o", producer, version=version, topic="none")
        talk.offsets("in nobody's name", "nobody", producer, version=version)
    for version in (3, 4):
        talk.offsets(
            "of an unknown generation", "o", producer, version=version, generation_id=5, member_id="m"
        )
        talk.offsets("of an unknown member", "o", producer, version=version, member_id="m")
        talk.offsets(
            "of an unknown instance", "o", producer, version=version, group_instance_id="i", member_id="m"
        )
    talk.end("the end", "o", producer, True)
    talk.offsets("after the end", "o", producer)
    second = talk.init("a producer", "o5", 5)
    talk.offsets("by version 5", "o5", second, version=5)
    talk.offsets("by version 5, another epoch", "o5", (second[0], second[1] + 1), version=5)
    talk.offsets("by version 5, in nobody's name", "nobody", second, version=5)
    talk.end("the end", "o5", second, False, 5)


def markers(talk: Conversation) -> None:
    talk.init("a producer", "m")
    producer = talk.init("its next epoch", "m")
    talk.add("two", "m", producer, TOPIC)
    talk.produce("a record", "m", producer, 0, version=8)

    def mark(
        what: str, epoch: int, coordinator: int, *topics: str, version: int = 1, partition: int = 0
    ) -> None:
        places = tuple(WritableTxnMarkerTopic(topic, (partition,)) for topic in topics)
        marker = WritableTxnMarker(producer[0], epoch, False, places, coordinator)
        talk.ask(what, MARKERS, WriteTxnMarkersRequest((marker,)), version)

    mark("to no topic", producer[1], 0, "none")
    mark("to no partition", producer[1], 0, TOPIC, partition=PARTITIONS)
    mark("of an older epoch", producer[1] - 1, 0, TOPIC)
    mark("to a partition without records", producer[1], 0, TOPIC, partition=1)
    mark("the marker", producer[1], 7, TOPIC)
    mark("again", producer[1], 7, TOPIC)
    mark("of an older coordinator", producer[1], 6, TOPIC)
    mark("of a newer epoch", producer[1] + 1, 7, TOPIC)
    talk.ask("none", MARKERS, WriteTxnMarkersRequest(()), 1)


def lists(talk: Conversation) -> None:
    talk.ask("an unknown state", LIST, ListTransactionsRequest(("Ongoing", "Sleeping")), 2)
    talk.ask("a bad pattern", LIST, ListTransactionsRequest(transactional_id_pattern="(["), 2)
    talk.ask("nobody's producer id", LIST, ListTransactionsRequest((), (7_777_777,)), 2)
    talk.ask("one name", LIST, ListTransactionsRequest(transactional_id_pattern="m"), 2)
    talk.ask("a state and a pattern", LIST, ListTransactionsRequest(("Empty",), (), -1, "a|b"), 2)
    talk.ask("nothing", DESCRIBE, DescribeTransactionsRequest(()), 0)
    talk.ask("longer than the broker lives", LIST, ListTransactionsRequest(duration_filter=10**9), 2)


def long_names(talk: Conversation) -> None:
    """An id has 32,767 letters at the most. Versions with compact strings could say longer ones."""
    for length in (32_767, 32_768, 40_000, 200_000):
        what = f"{length:,} letters"
        talk.name_bytes = length
        producer = talk.init(what, LONG_NAME)
        producer = (1, 0) if producer[0] < 0 else producer
        talk.add(what, LONG_NAME, producer, TOPIC)
        talk.ask(what, ADD_OFFSETS, AddOffsetsToTxnRequest(LONG_NAME, *producer, GROUP), 3)
        talk.offsets(what, LONG_NAME, producer)
        talk.offsets(what, LONG_NAME, producer, version=5)
        talk.produce(what, LONG_NAME, producer, 0, version=9)
        talk.produce(what, LONG_NAME, producer, 0, version=12, partition=1)
        talk.ask(what, DESCRIBE, DescribeTransactionsRequest((LONG_NAME,)), 0)
        talk.ask(what, END, EndTxnRequest(LONG_NAME, *producer, True), 4)


def two_at_once(talk: Conversation) -> None:
    """Two producers with one id: the second takes over in the middle of the first one's transaction."""
    first = talk.init("the first", "two")
    talk.add("the first", "two", first, TOPIC)
    talk.produce("the first", "two", first, 0, version=8)
    talk.ask("the first", ADD_OFFSETS, AddOffsetsToTxnRequest("two", *first, GROUP), 3)
    talk.offsets("the first", "two", first)
    second = talk.init("the second", "two")
    for round_ in ("before", "in", "after"):
        if round_ == "in":
            talk.add("the second", "two", second, TOPIC)
            talk.produce("the second", "two", second, 0, version=8)
        if round_ == "after":
            talk.end("the second", "two", second, True)
        what = f"the first, {round_} the second's"
        talk.add(what, "two", first, TOPIC)
        for version, partition in ((8, 0), (12, 0), (8, 1), (12, 1)):
            talk.produce(what, "two", first, 1, version=version, partition=partition)
        talk.ask(what, ADD_OFFSETS, AddOffsetsToTxnRequest("two", *first, GROUP), 3)
        for version in (3, 4, 5):
            talk.offsets(what, "two", first, version=version)
        for version in (4, 5):
            talk.end(what, "two", first, True, version)
            talk.end(what, "two", first, False, version)
        for version in (3, 4):
            talk.init(what, "two", version, producer_id=first[0], producer_epoch=first[1])
    talk.ask("what is left", DESCRIBE, DescribeTransactionsRequest(("two",)), 0)


def vanishing(talk: Conversation) -> None:
    """A topic is deleted in the middle of a transaction."""
    for version in (8, 12):
        producer = talk.init("a producer", "vanishing")
        for commit in (True, False):
            topic = f"gone-{version}-{commit}"
            talk.create(topic)
            if version < 12:
                talk.add("two topics", "vanishing", producer, TOPIC, topic, version=3)
            sequence = 0 if version == 12 else int(not commit)
            talk.produce("a record", "vanishing", producer, sequence, version=version)
            talk.produce("a record of it", "vanishing", producer, 0, version=version, topic=topic)
            talk.delete(topic)
            talk.produce("a record, too late", "vanishing", producer, 1, version=version, topic=topic)
            talk.add("added again", "vanishing", producer, topic)
            talk.verify("is it in", "vanishing", producer, topic, 0)
            talk.offsets(
                "offsets of it", "vanishing", producer, topic=topic, version=4 if version == 8 else 5
            )
            ended = talk.end("the end", "vanishing", producer, commit, 4 if version == 8 else 5)
            producer = producer if version == 8 else ended
            talk.ask("afterwards", DESCRIBE, DescribeTransactionsRequest(("vanishing",)), 0)


def members(talk: Conversation) -> None:
    """Offsets of a group that has a member."""
    group = "with-a-member"
    member, generation = talk.join(group)
    producer = talk.init("a producer", "member")
    talk.ask("of a group", ADD_OFFSETS, AddOffsetsToTxnRequest("member", *producer, group), 3)
    own: dict[str, Any] = {"generation_id": generation, "member_id": member}
    for version in (2, 3, 4, 5):
        commit = partial(talk.offsets, name="member", producer=producer, version=version, group=group)
        if version < 3:
            commit("of nobody in particular")
            continue
        commit("of the member", **own)
        commit("of an older generation", **{**own, "generation_id": generation - 1})
        commit("of a generation to come", **{**own, "generation_id": generation + 1})
        commit("of another member", **{**own, "member_id": "nobody"})
        commit("of no member", **{**own, "member_id": ""})
        commit("of no generation", **{**own, "generation_id": -1})
        commit("of neither")
        commit("of another instance", **own, group_instance_id="instance")
    talk.end("the end", "member", producer, False)
    talk.offsets(
        "not begun, of another member", "member", producer, group=group, generation_id=7, member_id="x"
    )
    talk.offsets("not begun, of no topic", "member", producer, group=group, topic="none")


def internal_topics(talk: Conversation) -> None:
    """Partitions of internal topics, which no client may write."""
    producer = talk.init("a producer", "inside")
    for topic in ("__consumer_offsets", "__transaction_state"):
        talk.verify("not added", "inside", producer, topic, 0)
        talk.add("added", "inside", producer, topic)
        talk.verify("is it in", "inside", producer, topic, 0)
        talk.produce("a record", "inside", producer, 0, version=8, topic=topic)
        talk.produce("a record", "inside", producer, 0, version=12, topic=topic)
        talk.produce(
            "a record to one that was not added", "inside", producer, 0, version=8, topic=topic, partition=3
        )
        talk.produce("outside", "inside", producer, 0, version=8, topic=topic, transactional=False)
        talk.produce("in no one's name", None, producer, 0, version=8, topic=topic)
    talk.add("and one that is not", "inside", producer, TOPIC)
    talk.produce("which takes a record", "inside", producer, 0, version=8)
    talk.end("the end", "inside", producer, True)
    talk.ask("afterwards", DESCRIBE, DescribeTransactionsRequest(("inside",)), 0)
    talk.add("the next", "inside", producer, TOPIC)
    talk.end("its end", "inside", producer, True)


def timed_out(talk: Conversation) -> None:
    """What a producer hears that comes back after its transaction's time: one id for each thing it may do first."""
    names = [
        f"late-{protocol}-{first}"
        for protocol in (1, 2)
        for first in ("commit", "abort", "produce", "add", "offsets", "add-offsets", "init", "other-end")
    ]
    producers = {}
    for name in names:
        talk.create(name)
    for name in names:
        producer = talk.init("a producer", name, transaction_timeout_ms=3_000)
        producers[name] = producer
        if "-1-" in name:
            talk.add("its partitions", name, producer, name)
        talk.produce("a record", name, producer, 0, version=11 if "-1-" in name else 12, topic=name)
    talk.wait_until_aborted(*names)
    for name, producer in producers.items():
        first = name.split("-", 2)[2]
        version = 4 if "-1-" in name else 5
        talk.ask("aborted by its time", DESCRIBE, DescribeTransactionsRequest((name,)), 0)
        if first == "commit":
            talk.end("its commit comes late", name, producer, True, version)
            talk.end("and again", name, producer, True, version)
            talk.end("then its abort", name, producer, False, version)
        elif first == "abort":
            talk.end("its abort comes late", name, producer, False, version)
            talk.end("and again", name, producer, False, version)
        elif first == "other-end":
            talk.end("its commit by the other protocol", name, producer, True, 9 - version)
            talk.end("its abort by the other protocol", name, producer, False, 9 - version)
        elif first == "produce":
            talk.produce("its next record comes late", name, producer, 1, version=version + 7, topic=name)
        elif first == "add":
            talk.add("another partition comes late", name, producer, name)
        elif first == "offsets":
            talk.offsets("its offsets come late", name, producer, version=version)
        elif first == "add-offsets":
            request = AddOffsetsToTxnRequest(name, *producer, GROUP)
            talk.ask("its group comes late", ADD_OFFSETS, request, version - 1)
        else:
            talk.init("it asks for its epoch", name, producer_id=producer[0], producer_epoch=producer[1])
        talk.ask("afterwards", DESCRIBE, DescribeTransactionsRequest((name,)), 0)
        talk.init("a successor", name)


def refused_records(talk: Conversation) -> None:
    """A record that is too large, and which sequence the next transaction begins with."""
    assert create_topic(talk.port, "small", partitions=2, configs={"max.message.bytes": "300"}) == 0
    assert within(20, lambda: is_served(f"127.0.0.1:{talk.port}", "small", 2))
    for version, end, name in ((8, 3, "small-1"), (11, 4, "small-1-new"), (12, 5, "small-2")):
        producer = talk.init("a producer", name)
        write = partial(talk.produce, version=version, topic="small")
        for number in range(2):
            if version < 12:
                talk.add("the partition", name, producer, "small")
            if number == 0:
                write("a record", name, producer, 0)
                talk.produce_too_large("one too large", name, producer, 1, version)
                write("the one after it", name, producer, 2)
                write("in the place of the refused one", name, producer, 1)
                talk.produce_too_large("too large again", name, producer, 2, version)
                after = talk.end("the abort", name, producer, False, end)
                producer = after if version == 12 else producer
            else:
                write("as if the refused one were there", name, producer, 3)
                write("as if nothing were refused", name, producer, 2)
                write("from the beginning", name, producer, 0)
                talk.end("the commit", name, producer, True, end)


PARTS: Final[tuple[Callable[[Conversation], None], ...]] = (
    producer_ids,
    partitions,
    ends,
    records,
    group_offsets,
    markers,
    lists,
    long_names,
    two_at_once,
    vanishing,
    members,
    internal_topics,
    timed_out,
    refused_records,
)


def answers(address: str) -> dict[str, list[str]]:
    """What a fresh broker answers, by the name of the part."""
    admin = ConfluentClient(address)
    admin.create_topic(TOPIC, PARTITIONS)
    assert within(20, lambda: is_served(address, TOPIC, PARTITIONS))
    # Both coordinators' topics are made when their coordinator is asked for.
    ConfluentTransactions(address).committed(GROUP, TOPIC)
    ConfluentTransactions(address).producer("warm-up").init()
    found = {}
    for part in PARTS:
        talk = Conversation(int(address.rpartition(":")[2]))
        part(talk)
        found[part.__name__] = talk.lines
    return found


def recorded() -> dict[str, list[str]]:
    """What Apache Kafka answered."""
    found: dict[str, list[str]] = {}
    for line in RECORDED.read_text().splitlines():
        part, _, text = line.partition(" | ")
        found.setdefault(part, []).append(text)
    return found


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as directory,
        running_broker(Path(directory) / "data", ENDS_AT_ONCE) as broker,
    ):
        told = answers(broker.address)
    RECORDED.write_text("".join(f"{part} | {line}\n" for part, lines in told.items() for line in lines))
