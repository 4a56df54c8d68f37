"""Requests of transactions that no library sends, and what Apache Kafka 4.3.1 answers to each.

The answers lie in transaction_answers.txt, one a line.
`APPLIANCE_JUDGE=kafka python -m tests.system.transaction_answers` writes them again.
A producer id is told by its place in the order in which they were given out, a time as `now`.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
from collections.abc import Callable
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
from appliance.protocol.apis.describe_transactions import DescribeTransactionsRequest
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.list_transactions import ListTransactionsRequest
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
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.record import Record, encode_batch
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.play import within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.support.judge import running_broker
from tests.support.raw_fetch import is_served
from tests.support.wire import ConnectionEnded, WireSocket, nullable_string
from tests.system.raw import ask, produce_body, read_produced

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
        self._port = port
        self.lines: list[str] = []
        self._ids: dict[int, str] = {}

    def ask(self, what: str, api: ApiKey, request: Any, version: int) -> Any:
        """Asks until the answer is none that only says `later`."""
        deadline = time.monotonic() + 15
        while True:
            with WireSocket(self._port) as connection:
                try:
                    answer = ask(connection, api, request, version=version)
                except ConnectionEnded:
                    self.lines.append(f"{what} | {api.name} v{version} | closed")
                    return None
            told = msgspec.to_builtins(answer)
            if not COMES & _codes(told) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self.lines.append(f"{what} | {api.name} v{version} | {json.dumps(self._plain(told))}")
        return answer

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
        with WireSocket(self._port) as connection:
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
        **member: Any,
    ) -> None:
        wanted = (TxnOffsetCommitTopic(topic, (TxnOffsetCommitPartition(0, 5, ""),)),)
        request = TxnOffsetCommitRequest(name, GROUP, *producer, wanted, **member)
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
    ) -> None:
        """One record; what the answer says of the partition."""
        records = encode_batch(
            [Record(b"value")],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL if transactional else 0,
        )
        with WireSocket(self._port) as connection:
            if version < FLEXIBLE:
                body = nullable_string(name) + produce_body(topic, records, partition=partition)[2:]
            else:
                body = _flexible(name, topic, partition, records)
            connection.send_request(0, version, body, flexible=version >= FLEXIBLE)
            answer = connection.read_frame()
        if version < FLEXIBLE:
            told = read_produced(answer)
            said = f"{told.error} {told.base_offset} {told.message} {told.record_errors}"
        else:
            error, base_offset = struct.unpack_from(">hq", answer, 4 + len(_compact(topic.encode())) + 7)
            said = f"{error} {base_offset}"
        self.lines.append(f"{what} | PRODUCE v{version} | {said}")

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
        return told


FLEXIBLE: Final = 9


def _compact(data: bytes | None) -> bytes:
    """A compact string or bytes; all are short."""
    if data is None:
        return b"\x00"
    length = len(data) + 1
    return (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + data


def _flexible(name: str | None, topic: str, partition: int, records: bytes) -> bytes:
    """The body of a Produce request of version 9 to 12 for one partition."""
    return b"".join(
        (
            _compact(None if name is None else name.encode()),
            struct.pack(">hi", -1, 30_000) + b"\x02" + _compact(topic.encode()),
            b"\x02" + struct.pack(">i", partition) + _compact(records) + bytes(3),
        )
    )


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
        talk.produce("an older epoch", name, (producer[0], producer[1] - 1), 1, version=version)
        talk.produce("a newer epoch", name, (producer[0], producer[1] + 1), 0, version=version)
        talk.produce("in no one's name", None, producer, 0, version=version, partition=2)
        talk.produce("in another's name", "nobody", producer, 0, version=version, partition=1)
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


PARTS: Final[tuple[Callable[[Conversation], None], ...]] = (
    producer_ids,
    partitions,
    ends,
    records,
    group_offsets,
    markers,
    lists,
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
    with tempfile.TemporaryDirectory() as directory, running_broker(Path(directory) / "data") as broker:
        told = answers(broker.address)
    RECORDED.write_text("".join(f"{part} | {line}\n" for part, lines in told.items() for line in lines))
