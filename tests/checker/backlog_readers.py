"""Readers who begin again and again, at the log's start or somewhere behind it, while faults go on: a thread each.

Of several libraries, since each asks differently, and byte by byte: a library passes over what it cannot make out, and
asks again. They ask for little at a time and for much; and for stretches of time one of them reads alone, because a
network process reads ahead for one (decision 0060).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle
from struct import Struct
from typing import Any, Final, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import HEADER_BYTES, MAGIC_V2, crc_holds, read_header
from appliance.protocol.records.errors import CorruptBatch, InvalidRecords
from appliance.protocol.records.record import decode_records
from appliance_client import TopicPartition as NativePartition
from tests.checker.history import NOT_KNOWN, History
from tests.checker.native_clients import NativeConsumer
from tests.checker.values import token_in
from tests.support.raw_fetch import ask_for, read_records
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import ask

FROM_START: Final = -1
TO_START: Final = -1
ALONE_S: Final = 1.5
PASS_MAX_S: Final = 4.0
LAST_PASS_S: Final = 120.0
NEAR_THE_END: Final = (3_000, 300)
DAWDLE_MAX_S: Final = 0.1
_ANSWER_S: Final = 0.2
_BASE_OFFSET: Final = Struct(">q")

Got = tuple[int, int, bytes | None]
"""Partition, offset, value; an offset of TO_START says that the client went to where the log begins now."""


class TornRecords(Exception):
    """A client was sent what it cannot have been meant to be sent. The text says what."""


class RefusedOffset(Exception):
    """A client was refused an offset that it was once given. The text says by what."""


class Client(Protocol):
    """One library, or none. Of a trimmed topic it goes on at the log's start, where its offset is no longer there."""

    def begin(self, topic: str, places: Mapping[int, int], *, is_trimmed: bool) -> None:
        """Reads partition → offset (or FROM_START) from now on, and nothing else."""

    def some(self) -> Sequence[Got]:
        """What has come, within a fraction of a second.

        Raises:
            TornRecords: it is not what records look like.
            RefusedOffset: of a topic that nobody trims.
        """

    def close(self) -> None: ...


class LibrdkafkaClient:
    """confluent-kafka. Of what it cannot make out it tells with an error of the partition."""

    _TORN: Final = frozenset(
        (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG, KafkaError._UNDERFLOW)
    )

    def __init__(self, ports: Sequence[int], *, max_bytes: int, isolation: str) -> None:
        self._consumer: Consumer | None = None
        self._settings: Final = {
            "bootstrap.servers": _addresses(ports),
            "group.id": "not used",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "isolation.level": isolation,
            "fetch.message.max.bytes": max_bytes,
            "fetch.max.bytes": max(max_bytes, 1 << 20),
            "message.max.bytes": 1 << 20,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 20,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": 1024,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        self._is_trimmed = False
        self._refused: list[Place] = []

    def begin(self, topic: str, places: Mapping[int, int], *, is_trimmed: bool) -> None:
        self._is_trimmed = is_trimmed
        self.close()  # another assignment may be given what still came for the one before
        self._refused.clear()
        self._consumer = Consumer(self._settings)
        self._consumer.assign(
            [
                Place(topic, number, OFFSET_BEGINNING if offset == FROM_START else offset)
                for number, offset in places.items()
            ]
        )

    def some(self) -> Sequence[Got]:
        got: list[Got] = []
        if self._consumer is None:
            return got
        with suppress(KafkaException):  # tried again with the next
            while self._refused:
                self._consumer.seek(self._refused[-1])
                got.append((self._refused.pop().partition, TO_START, None))
        for message in self._consumer.consume(500, _ANSWER_S):
            error = message.error()
            if error is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                got.append((partition, offset, message.value()))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                if not self._is_trimmed:
                    raise RefusedOffset(
                        f"partition {message.partition()}, offset {message.offset()}: {error.str()}"
                    )
                topic, partition = message.topic(), message.partition()
                assert topic is not None
                assert partition is not None
                self._refused.append(Place(topic, partition, OFFSET_BEGINNING))
            elif error.code() in self._TORN:
                raise TornRecords(f"partition {message.partition()}, offset {message.offset()}: {error}")
        return got

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


class KafkaPythonClient:
    """kafka-python, whose every fault while it reads a batch is an exception of its own."""

    _TORN: Final = (kafka_errors.CorruptRecordError, AssertionError, ValueError, IndexError)

    def __init__(self, ports: Sequence[int], *, max_bytes: int, isolation: str) -> None:
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=_addresses(ports).split(","),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            check_crcs=True,
            isolation_level=isolation,
            max_partition_fetch_bytes=max_bytes,
            fetch_max_wait_ms=100,
            request_timeout_ms=10_000,
            retry_backoff_ms=20,
            reconnect_backoff_max_ms=500,
        )
        self._is_trimmed = False

    def begin(self, topic: str, places: Mapping[int, int], *, is_trimmed: bool) -> None:
        all_of_them = {TopicPartition(topic, number): offset for number, offset in places.items()}
        self._is_trimmed = is_trimmed
        self._consumer.assign(list(all_of_them))
        for place, offset in all_of_them.items():
            if offset == FROM_START:
                self._consumer.seek_to_beginning(place)
            else:
                self._consumer.seek(place, offset)

    def some(self) -> Sequence[Got]:
        try:
            polled = self._consumer.poll(timeout_ms=int(_ANSWER_S * 1000), max_records=500)
        except self._TORN as error:
            raise TornRecords(f"{type(error).__name__}: {error}") from error
        except kafka_errors.OffsetOutOfRangeError as refused:
            if not self._is_trimmed:
                raise RefusedOffset(str(refused)) from refused
            places = list(refused.args[0])
            self._consumer.seek_to_beginning(*places)
            return [(place.partition, TO_START, None) for place in places]
        except kafka_errors.KafkaError:
            return ()  # a fault goes on
        return [(place.partition, one.offset, one.value) for place, many in polled.items() for one in many]

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class NativeClient:
    """The native client, on one lane."""

    def __init__(self, place: str, *, max_bytes: int, isolation: str) -> None:
        self._consumer = NativeConsumer(place, isolation=isolation, max_partition_fetch_bytes=max_bytes)
        self._is_trimmed = False

    def begin(self, topic: str, places: Mapping[int, int], *, is_trimmed: bool) -> None:
        self._is_trimmed = is_trimmed
        self._consumer.assign(
            [
                Place(topic, number, OFFSET_BEGINNING if offset == FROM_START else offset)
                for number, offset in places.items()
            ]
        )

    def some(self) -> Sequence[Got]:
        got: list[Got] = []
        for message in self._consumer.consume(500, _ANSWER_S):
            error = message.error()
            if error is None:
                got.append((message.partition(), message.offset(), message.value()))
            elif error.code() != KafkaError._AUTO_OFFSET_RESET:
                raise TornRecords(str(error))
            elif not self._is_trimmed:
                raise RefusedOffset(str(error))
            else:
                topic = message.topic()
                assert topic is not None
                self._consumer.consumer.seek_to_beginning(NativePartition(topic, message.partition()))
                got.append((message.partition(), TO_START, None))
        return got

    def close(self) -> None:
        self._consumer.close()


class BytesClient:
    """Nobody's library: one partition's Fetch after the other, of which every byte is looked at."""

    def __init__(self, ports: Sequence[int], *, max_bytes: int, isolation: str) -> None:
        self._ports = list(ports)
        self._max_bytes = max_bytes
        self._isolation_level = int(isolation == "read_committed")
        self._topic = ""
        self._next: dict[int, int] = {}
        self._connections: dict[int, WireSocket] = {}
        self._leaders: dict[int, int] = {}
        self._is_trimmed = False

    def begin(self, topic: str, places: Mapping[int, int], *, is_trimmed: bool) -> None:
        self._topic, self._next, self._is_trimmed = topic, dict(places), is_trimmed

    def some(self) -> Sequence[Got]:
        got: list[Got] = []
        for number in self._next:
            got += self._read(number)
        return got

    def _read(self, number: int) -> Iterable[Got]:
        port = self._leaders.setdefault(number, self._ports[0])
        offset = self._next[number]
        try:
            connection = self._connections.get(port)
            if connection is None:
                connection = self._connections[port] = WireSocket(port, timeout_s=10)
            ask_for(
                connection,
                self._topic,
                number,
                offset=max(offset, 0),
                max_bytes=self._max_bytes,
                min_bytes=1,
                max_wait_ms=20,
                isolation=self._isolation_level,
            )
            error, answer = read_records(connection)
            if error == ErrorCode.OFFSET_OUT_OF_RANGE:
                if not self._is_trimmed:
                    raise RefusedOffset(f"partition {number}, offset {offset}: port {port} says out of range")
                self._next[number] = log_start(connection, self._topic, number)
                return ((number, TO_START, None),)
        except (OSError, ConnectionEnded):
            self._drop(port)
            self._leaders[number] = self._another(port)
            return ()
        if error:
            self._leaders[number] = self._another(port)
            time.sleep(0.005)
            return ()
        records, self._next[number] = records_of(answer, offset=max(offset, 0))
        return [(number, *record) for record in records]

    def _another(self, port: int) -> int:
        return self._ports[(self._ports.index(port) + 1) % len(self._ports)]

    def _drop(self, port: int) -> None:
        connection = self._connections.pop(port, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for port in list(self._connections):
            self._drop(port)


def records_of(answer: bytes, *, offset: int) -> tuple[list[tuple[int, bytes | None]], int]:
    """The records of an answer from `offset` on, and the offset behind its whole batches: one may be empty.

    Raises:
        TornRecords: of what was sent something is no batch, not whole before its last one, or not where it should be.
    """
    records: list[tuple[int, bytes | None]] = []
    position, expected, following = 0, NOT_KNOWN, offset
    while position < len(answer):
        left = len(answer) - position
        where = f"asked for offset {offset}, byte {position} of {len(answer)}"
        if left < HEADER_BYTES:
            if left >= _BASE_OFFSET.size and _BASE_OFFSET.unpack_from(answer, position)[0] < expected:
                raise TornRecords(f"{where}: {left} bytes that do not begin a batch")
            break
        try:
            header = read_header(answer, position)
        except CorruptBatch as error:
            raise TornRecords(f"{where}: {error}") from error
        if header.magic != MAGIC_V2 or header.size_bytes < HEADER_BYTES or header.base_offset < expected:
            raise TornRecords(f"{where}, after offset {expected - 1}: {header}")
        if expected == NOT_KNOWN and header.last_offset < offset:
            raise TornRecords(f"{where}: the first batch ends with offset {header.last_offset}")
        expected = header.next_offset
        if header.size_bytes > left:
            if not position:
                raise TornRecords(f"{where}: the first batch is cut")
            break
        batch = answer[position : position + header.size_bytes]
        if not crc_holds(memoryview(batch)):
            raise TornRecords(f"{where}: the checksum of {header} does not hold")
        try:
            decoded = decode_records(batch)
        except (CorruptBatch, InvalidRecords) as error:
            raise TornRecords(f"{where}: {error}") from error
        records += [(one.offset, one.value) for one in decoded if one.offset >= offset]
        position += header.size_bytes
        following = header.next_offset
    return records, following


def log_start(connection: WireSocket, topic: str, partition: int) -> int:
    """By ListOffsets; FROM_START where its answer is an error."""
    wanted = ListOffsetsTopic(topic, (ListOffsetsPartition(partition, EARLIEST_TIMESTAMP),))
    answer = ask(connection, ApiKey.LIST_OFFSETS, ListOffsetsRequest(-1, (wanted,)))
    told = answer.topics[0].partitions[0]
    return FROM_START if told.error_code else int(told.offset)


def _addresses(ports: Sequence[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


@dataclass(frozen=True, slots=True)
class Kind:
    """How one reader reads."""

    client: type[LibrdkafkaClient] | type[KafkaPythonClient] | type[BytesClient] | type[NativeClient]
    max_bytes: int
    isolation: str
    place: str = ""
    """Where a native client goes."""

    def made(self, ports: Sequence[int]) -> Client:
        """A client of this kind, connected or not yet."""
        if issubclass(self.client, NativeClient):
            return self.client(self.place, max_bytes=self.max_bytes, isolation=self.isolation)
        return self.client(ports, max_bytes=self.max_bytes, isolation=self.isolation)

    def __str__(self) -> str:
        return f"{self.client.__name__} of {self.max_bytes} bytes, {self.isolation}"


KINDS: Final = (
    Kind(LibrdkafkaClient, 20_000, "read_committed"),
    Kind(BytesClient, 40_000, "read_uncommitted"),
    Kind(KafkaPythonClient, 60_000, "read_uncommitted"),
    Kind(LibrdkafkaClient, 1 << 20, "read_uncommitted"),
    Kind(BytesClient, 150_000, "read_committed"),
    Kind(KafkaPythonClient, 300_000, "read_committed"),
)


def kinds_on(places: Sequence[str]) -> tuple[Kind, ...]:
    """`KINDS`, with native clients on these lanes in the places of kafka-python's."""
    if not places:
        return KINDS
    turns = cycle(places)
    return tuple(
        replace(kind, client=NativeClient, place=next(turns)) if kind.client is KafkaPythonClient else kind
        for kind in KINDS
    )


class BacklogReaders:
    """A thread for each of `kinds`, from `start` to `finish`; what they were given goes into the histories' backlogs.

    Args:
        histories: of each topic.
        trimmed: topics of which records are deleted from the log's start on.
        say: is told each failure at once: of some answers a library dies, and with it this process.
    """

    def __init__(
        self,
        ports: Sequence[int],
        histories: Mapping[str, History],
        *,
        trimmed: Container[str] = (),
        seed: int,
        kinds: Sequence[Kind] = KINDS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._kinds = kinds
        self._say = say
        self._ports = ports
        self._trimmed = trimmed
        self._histories = histories
        self._noting = threading.Lock()
        self._finishing = threading.Event()
        self._ends: Mapping[str, Sequence[int]] = {}
        self.failures: list[str] = []
        self.passes = [0] * len(kinds)
        self.records = [0] * len(kinds)
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(seed * 100 + number)), daemon=True)
            for number in range(len(kinds))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self, ends: Mapping[str, Sequence[int]]) -> None:
        """Has each reader come to the ends of all partitions once more; who does not has a sentence in `failures`."""
        self._ends = ends
        self._finishing.set()
        for number, thread in enumerate(self._threads):
            thread.join(LAST_PASS_S * len(self._histories) + 30)
            if thread.is_alive():
                self.failures.append(f"unseen: {self._name(number)} does not end")

    def told(self) -> str:
        """What they did, for whoever looks on."""
        return "; ".join(
            f"{self._name(number)}: {self.passes[number]} passes, {self.records[number]} records"
            for number in range(len(self._kinds))
        )

    def _fail(self, sentence: str) -> None:
        self.failures.append(sentence)
        self._say(sentence)

    def _name(self, number: int) -> str:
        return f"backlog reader {number} ({self._kinds[number]})"

    def _run(self, number: int, chance: random.Random) -> None:
        client: Client | None = None
        topics = sorted(self._histories)
        while not self._finishing.is_set():
            if client is None:
                client = self._connected(number)
                if client is None:
                    continue
            self._pass(client, number, chance.choice(topics), chance)
            if chance.random() < 0.3:
                _close(client)
                client = None
        for topic in topics:
            self._last_pass(number, topic, self._ends[topic])
        if client is not None:
            _close(client)

    def _connected(self, number: int) -> Client | None:
        try:
            return self._kinds[number].made(self._ports)
        except (kafka_errors.KafkaError, KafkaException, OSError):
            time.sleep(0.1)  # everything is down
            return None

    def _pass(self, client: Client, number: int, topic: str, chance: random.Random) -> None:
        """From some place on, for some time."""
        backlogs = self._histories[topic].backlogs
        # Ahead of one who reads a single partition is read; and the more there is to read, the slower he is.
        count = chance.choice((1, chance.randint(1, len(backlogs))))
        some = chance.sample(range(len(backlogs)), count)
        places = {each: _some_offset(len(backlogs[each].tokens), chance) for each in some}
        until = time.monotonic() + chance.uniform(0.3, PASS_MAX_S)
        dawdle_s = chance.choice((0.0, 0.0, chance.uniform(0.0, DAWDLE_MAX_S)))
        self._read(client, number, topic, places, until=until, is_last=False, dawdle_s=dawdle_s)
        self.passes[number] += 1

    def _last_pass(self, number: int, topic: str, ends: Sequence[int]) -> None:
        # From the start on it would be long for who decodes in Python.
        is_quick = self._kinds[number].client is LibrdkafkaClient
        places = {
            each: FROM_START if is_quick else max(0, end - NEAR_THE_END[0]) for each, end in enumerate(ends)
        }
        until = time.monotonic() + LAST_PASS_S
        last: Mapping[int, int] = {}
        while time.monotonic() < until:
            client = self._connected(number)
            if client is not None:
                last = self._read(client, number, topic, places, until=until, is_last=True)
                _close(client)
                break
        for partition, end in enumerate(ends):
            if last.get(partition, NOT_KNOWN) < end - 1:
                self.failures.append(
                    f"unseen: {self._name(number)} never came to offset {end - 1} of {topic}-{partition}, only to "
                    f"{last.get(partition, NOT_KNOWN)}"
                )

    def _read(
        self,
        client: Client,
        number: int,
        topic: str,
        places: Mapping[int, int],
        *,
        until: float,
        is_last: bool,
        dawdle_s: float = 0.0,
    ) -> Mapping[int, int]:
        """Until the time is over, or the last pass has come to all ends; each partition's last offset."""
        name = self._name(number)
        before = {each: max(offset, 0) - 1 for each, offset in places.items()}
        to_start = {each for each, offset in places.items() if offset == FROM_START}
        if topic not in self._trimmed:
            to_start.clear()
        with suppress(KafkaException, kafka_errors.KafkaError):
            client.begin(topic, places, is_trimmed=topic in self._trimmed)
        while time.monotonic() < until:
            if is_last:
                if all(before[each] >= end - 1 for each, end in enumerate(self._ends[topic])):
                    break
            elif self._finishing.is_set():
                break
            elif not may_read(number, time.monotonic()):
                time.sleep(0.02)
                continue
            try:
                got = client.some()
            except TornRecords as torn:
                self._fail(f"torn: {name} in {topic}: {torn}")
                break
            except RefusedOffset as refused:
                self._fail(f"went back: {name} in {topic}: {refused}")
                break
            except (KafkaException, kafka_errors.KafkaError):
                continue
            self._note(name, topic, got, before, to_start)
            self.records[number] += len(got)
            if dawdle_s and got:
                time.sleep(dawdle_s)
        return before

    def _note(
        self,
        name: str,
        topic: str,
        got: Sequence[Got],
        before: dict[int, int],
        to_start: set[int],
    ) -> None:
        """`to_start` are the partitions of which the next record is the first that was there."""
        backlogs = self._histories[topic].backlogs
        tokens = [token_in(topic, value) for _, _, value in got]
        with self._noting:
            for (partition, offset, _), token in zip(got, tokens, strict=True):
                if offset == TO_START:
                    to_start.add(partition)
                    continue
                wrong = backlogs[partition].wrong
                count = len(wrong)
                backlogs[partition].add(
                    name, offset, token, before=before[partition], may_have_passed=partition in to_start
                )
                to_start.discard(partition)
                before[partition] = offset
                if len(wrong) > count:
                    self._say(f"partition {partition}: {': '.join(wrong[-1])}")


def may_read(number: int, at_s: float) -> bool:
    """Half of the time everybody reads; the other half each in turn, alone."""
    turn, is_alone = divmod(int(at_s / ALONE_S), 2)
    return not is_alone or turn % len(KINDS) == number


def _some_offset(known: int, chance: random.Random) -> int:
    """The log's start, anywhere, or not far from the end."""
    first = chance.choice((FROM_START, 0, *(max(0, known - near) for near in NEAR_THE_END)))
    return FROM_START if first == FROM_START or not known else chance.randrange(first, known)


def _close(client: Client) -> None:
    with suppress(Exception):
        client.close()
