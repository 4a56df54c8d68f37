"""Requests of transactions that no library sends, and what Apache Kafka 4.3.1 answers to each.

The answers lie in transaction_answers.txt, one a line as `transaction_conversation` writes them.
`APPLIANCE_JUDGE=kafka python -m tests.system.transaction_answers` writes them again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from appliance.protocol.apis.describe_transactions import DescribeTransactionsRequest
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.list_transactions import ListTransactionsRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from appliance.protocol.records.batch import CONTROL
from appliance.protocol.records.record import Record
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.play import within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.support.judge import ENDS_AT_ONCE, running_broker
from tests.support.raw_fetch import is_served
from tests.system.raw import create_topic
from tests.system.transaction_conversation import (
    ADD,
    ADD_OFFSETS,
    DESCRIBE,
    END,
    GROUP,
    LONG_NAME,
    TOO_LARGE,
    TOPIC,
    Conversation,
)

RECORDED: Final = Path(__file__).with_name("transaction_answers.txt")
PARTITIONS: Final = 3
A_MARKER: Final = Record(bytes(6), b"\0\0\0\1")
TOO_LATE: Final = Record(b"value", timestamp_ms=4_000_000_000_000)

MARKERS: Final = ApiKey.WRITE_TXN_MARKERS
LIST: Final = ApiKey.LIST_TRANSACTIONS


def unasked(talk: Conversation) -> None:
    """Before anybody has looked for a coordinator: FindCoordinator makes the topics in which its state is kept."""
    talk.patience_s = 0
    for version in (0, 2, 3, 4, 5):
        talk.init("an empty id", "", version)
        talk.init("no time", "u", version, transaction_timeout_ms=0)
        talk.init("nothing wrong", "u", version)
    talk.init("an epoch of its own", "u", producer_id=5, producer_epoch=1)
    producer = (5, 1)
    for version in (0, 3):
        talk.add("a partition", "u", producer, TOPIC, version=version)
    talk.verify("is it in", "u", producer, TOPIC, 0)
    for version in (0, 3, 4):
        talk.ask("of a group", ADD_OFFSETS, AddOffsetsToTxnRequest("u", *producer, GROUP), version)
    for version in (0, 4, 5):
        talk.ask("the end", END, EndTxnRequest("u", *producer, True), version)
    for version in (3, 5):
        talk.offsets("offsets", "u", producer, version=version)
    talk.ask("the transaction", DESCRIBE, DescribeTransactionsRequest(("u",)), 0)
    talk.ask("all of them", LIST, ListTransactionsRequest(), 2)
    for version in (8, 11, 12):
        talk.produce("a record", "u", producer, 0, version=version)
    topics = talk.quietly(ApiKey.METADATA, MetadataRequest(None)).topics
    talk.lines.append(f"afterwards | METADATA | {sorted(topic.name for topic in topics)}")


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


def unfit_records(talk: Conversation) -> None:
    """Batches that are wrong in themselves, in and outside of their producer's transaction."""
    own = {"max.message.bytes": "300"}
    assert create_topic(talk.port, "narrow", partitions=2, configs=own) == 0
    assert create_topic(talk.port, "keyed", partitions=2, configs={"cleanup.policy": "compact"}) == 0
    assert within(20, lambda: is_served(f"127.0.0.1:{talk.port}", "narrow", 2))
    assert within(20, lambda: is_served(f"127.0.0.1:{talk.port}", "keyed", 2))
    unfit: Mapping[str, Mapping[str, Any]] = {
        "too large": {"topic": "narrow", "record": TOO_LARGE},
        "too late": {"topic": "narrow", "record": TOO_LATE},
        "without a key": {"topic": "keyed"},
        "damaged": {"topic": "narrow", "is_damaged": True},
        "a marker": {"topic": "narrow", "record": A_MARKER, "attributes": CONTROL},
    }
    for version, end in ((8, 3), (11, 4), (12, 5)):
        for fault, batch in unfit.items():
            _unfit(talk, fault, batch, version=version, end=end)


def _unfit(talk: Conversation, fault: str, batch: Mapping[str, Any], *, version: int, end: int) -> None:
    name = f"{fault} {version}"
    talk.init("a producer", name)
    producer = talk.init("its next epoch", name)
    older = producer[0], producer[1] - 1
    other = talk.init("another producer", f"other {name}")

    def write(what: str, name: str | None, of: tuple[int, int], sequence: int) -> None:
        talk.produce_unfit(f"{fault}, {what}", name, of, sequence, version=version, **batch)

    def write_sound(what: str, sequence: int) -> None:
        keyed = Record(b"value", b"key")
        talk.produce(what, name, producer, sequence, version=version, topic=batch["topic"], record=keyed)

    if version < 12:
        write("before the transaction", name, producer, 0)
    write("of an older epoch", name, older, 0)
    write("of another producer", name, other, 0)
    write("of nobody", name, (producer[0] + 999_999, 0), 0)
    write("in no one's name", None, producer, 0)
    write("in no one's name, of no producer", None, (-1, -1), -1)
    if version < 12:
        talk.add("the partitions", name, producer, batch["topic"])
    write("in the transaction", name, producer, 0)
    write_sound("the one after it", 1)
    write_sound("in its place", 0)
    write("where it is open", name, producer, 1)
    write("where it is open, of an older epoch", name, older, 1)
    write("where it is open, in no one's name", None, producer, 1)
    talk.end("the end", name, producer, True, end)


PARTS: Final[tuple[Callable[[Conversation], None], ...]] = (
    unasked,
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
    unfit_records,
)


def answers(address: str) -> dict[str, list[str]]:
    """What a fresh broker answers, by the name of the part."""
    admin = ConfluentClient(address)
    admin.create_topic(TOPIC, PARTITIONS)
    assert within(20, lambda: is_served(address, TOPIC, PARTITIONS))
    found = {}
    for part in PARTS:
        talk = Conversation(int(address.rpartition(":")[2]))
        part(talk)
        found[part.__name__] = talk.lines
        if part is unasked:
            # Both coordinators' topics are made when their coordinator is asked for.
            ConfluentTransactions(address).committed(GROUP, TOPIC)
            ConfluentTransactions(address).producer("warm-up").init()
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
