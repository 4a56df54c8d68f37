"""Raw transactional producers: `python -m benchmarks.load.transactions HOST:PORT TOPIC [flags]`. Prints JSON.

One thread and one epoll serve all producers, and the frames are prebuilt, so that a client library is not what is
measured. Version 1 sends AddPartitionsToTxn 2, Produce 8 and EndTxn 2, one after the other. Version 2 sends Produce 12
and EndTxn 5. A retriable error is asked again after two milliseconds, and counted; every other error ends the run.

    commit     each producer runs transactions of --records records for --seconds
    ids        InitProducerId for --ids transactional ids
    open       each of --ids transactional ids opens a transaction (version 1), and leaves it open
    client     one librdkafka producer runs transactions of one record for --seconds
    copy       reads --ids records that it has written to --source, and copies them in transactions of 100
    first      retries EndTxn of the first of those until it is answered, and prints when that was
"""

import argparse
import json
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from crc32c import crc32c

from benchmarks.load.hostile import array, compact, frame, text, uvarint

RETRIABLE = (3, 14, 15, 16, 19, 51)
"""UNKNOWN_TOPIC_OR_PARTITION, the three of a coordinator that loads or moved, NOT_ENOUGH_REPLICAS,
CONCURRENT_TRANSACTIONS."""
RETRY_AFTER_SECONDS = 0.002
TIMEOUT_MS = 600_000
RECORD_BYTES = 100
PATIENCE_SECONDS = 120.0
BATCH_RECORDS = 5000
"""More would be above max.message.bytes. A transaction is as many whole batches."""


def varint(value: int) -> bytes:
    return uvarint(value << 1)


def records(count: int, record_bytes: int = RECORD_BYTES) -> bytes:
    """`count` records without keys."""
    out, value = bytearray(), varint(record_bytes) + b"x" * record_bytes
    for number in range(count):
        body = b"\x00\x00" + varint(number) + b"\x01" + value + b"\x00"
        out += varint(len(body)) + body
    return bytes(out)


def batch(payload: bytes, count: int, *, producer_id: int, epoch: int, sequence: int) -> bytes:
    """A transactional batch (attribute 0x10)."""
    now_ms = time.time_ns() // 1_000_000
    checked = (
        struct.pack(">hiqqqhii", 0x10, count - 1, now_ms, now_ms, producer_id, epoch, sequence, count)
        + payload
    )
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


def init(name: str) -> bytes:
    return frame(22, 1, text(name) + struct.pack(">i", TIMEOUT_MS))


def add(name: str, producer_id: int, epoch: int, topic: str, partition: int) -> bytes:
    places = array([text(topic) + array([struct.pack(">i", partition)])])
    return frame(24, 2, text(name) + struct.pack(">qh", producer_id, epoch) + places)


def produce(name: str, topic: str, partition: int, raw: bytes, *, version: int) -> bytes:
    if version == 1:
        place = array([text(topic) + array([struct.pack(">ii", partition, len(raw)) + raw])])
        return frame(0, 8, text(name) + struct.pack(">hi", -1, 30_000) + place)
    one = struct.pack(">i", partition) + uvarint(len(raw) + 1) + raw + b"\x00"
    place = b"\x02" + compact(topic) + b"\x02" + one + b"\x00"
    body = compact(name) + struct.pack(">hi", -1, 30_000) + place + b"\x00"
    return frame(0, 12, body, flexible=True)


def end(name: str, producer_id: int, epoch: int, *, version: int) -> bytes:
    if version == 1:
        return frame(26, 2, text(name) + struct.pack(">qhb", producer_id, epoch, 1))
    return frame(26, 5, compact(name) + struct.pack(">qhb", producer_id, epoch, 1) + b"\x00", flexible=True)


def ask(connection: socket.socket, sent: bytes) -> bytes:
    """The answer behind its size and correlation id, on a blocking connection."""
    connection.sendall(sent)
    size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
    return connection.recv(size, socket.MSG_WAITALL)[4:]


def connect(address: str, *, timeout_s: float | None = PATIENCE_SECONDS) -> socket.socket:
    """A connection to HOST:PORT without Nagle's delay. With a timeout, each call costs one system call more."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def await_init(connection: socket.socket, name: str) -> tuple[int, int]:
    """Producer id and epoch; asks again while the coordinator is not there yet."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        _, error, producer_id, epoch = struct.unpack_from(">ihqh", ask(connection, init(name)))
        if not error:
            return producer_id, epoch
        if error not in RETRIABLE or time.monotonic() > until:
            raise SystemExit(f"InitProducerId of {name}: error {error}")
        time.sleep(0.02)


def await_coordinator(address: str, names: list[str]) -> None:
    """FindCoordinator makes `__transaction_state`; wait until each id has a coordinator."""
    with connect(address) as connection:
        for name in names:
            until = time.monotonic() + PATIENCE_SECONDS
            while struct.unpack_from(">ih", ask(connection, frame(10, 1, text(name) + b"\x01")))[1]:
                if time.monotonic() > until:
                    raise SystemExit("there is no transaction coordinator")
                time.sleep(0.02)


def _error_at(answer: bytes, position: int) -> int:
    return int.from_bytes(answer[position : position + 2], signed=True)


@dataclass(slots=True)
class Producer:
    """One transactional producer: a generator yields frames and gets their answers."""

    name: str
    topic: str
    partition: int
    version: int
    count: int
    payload: bytes
    connection: socket.socket
    producer_id: int = 0
    epoch: int = 0
    sequence: int = 0
    commit_ns: list[int] = field(default_factory=list)
    whole_ns: list[int] = field(default_factory=list)
    retries: int = 0
    waiting: bytearray = field(default_factory=bytearray)

    def run(self, until: float) -> Iterator[bytes]:
        """Transactions until `until`. Sends what it yields; the answer is in `waiting`."""
        while time.monotonic() < until:
            began_ns = time.monotonic_ns()
            if self.version == 1:
                yield from self._asked(
                    add(self.name, self.producer_id, self.epoch, self.topic, self.partition), self._added
                )
            for _ in range(0, self.count, BATCH_RECORDS):
                count = min(self.count, BATCH_RECORDS)
                raw = batch(
                    self.payload,
                    count,
                    producer_id=self.producer_id,
                    epoch=self.epoch,
                    sequence=self.sequence,
                )
                sent = produce(self.name, self.topic, self.partition, raw, version=self.version)
                yield from self._asked(sent, self._produced)
                self.sequence += count
            ended_ns = time.monotonic_ns()
            sent = end(self.name, self.producer_id, self.epoch, version=self.version)
            yield from self._asked(sent, self._ended)
            now_ns = time.monotonic_ns()
            self.commit_ns.append(now_ns - ended_ns)
            self.whole_ns.append(now_ns - began_ns)

    def _asked(self, sent: bytes, error_of: Callable[[bytes], int]) -> Iterator[bytes]:
        while True:
            yield sent
            error = error_of(bytes(self.waiting))
            if not error:
                return
            if error not in RETRIABLE:
                raise SystemExit(
                    f"{self.name}: error {error} to a request of API {int.from_bytes(sent[4:6])}"
                )
            self.retries += 1
            yield b""  # sleep

    def _added(self, answer: bytes) -> int:
        return _error_at(answer, 4 + 4 + 2 + len(self.topic) + 4 + 4)

    def _produced(self, answer: bytes) -> int:
        if self.version == 1:
            return _error_at(answer, 4 + 2 + len(self.topic) + 4 + 4)
        # Tag of the header, topics, name, partitions, index.
        return _error_at(answer, 1 + 1 + 1 + len(self.topic) + 1 + 4)

    def _ended(self, answer: bytes) -> int:
        if self.version == 1:
            return _error_at(answer, 4)
        error = _error_at(answer, 1 + 4)
        if not error:
            self.producer_id, self.epoch = struct.unpack_from(">qh", answer, 1 + 4 + 2)
            self.sequence = 0
        return error


def commit(asked: argparse.Namespace) -> dict[str, float]:
    """Transactions of all producers side by side."""
    payload = records(min(asked.records, BATCH_RECORDS))
    names = [f"{asked.topic}-{number}" for number in range(asked.producers)]
    await_coordinator(asked.address, names[:1])
    producers = []
    for number, name in enumerate(names):
        connection = connect(asked.address)
        producer_id, epoch = await_init(connection, name)
        one = Producer(
            name, asked.topic, number % asked.partitions, asked.version, asked.records, payload, connection
        )
        one.producer_id, one.epoch = producer_id, epoch
        producers.append(one)
    _drive(producers, time.monotonic() + asked.warmup)
    warm_up = sum(len(one.whole_ns) for one in producers)
    for one in producers:
        one.commit_ns.clear()
        one.whole_ns.clear()
        one.retries = 0
    before_cpu, began = time.process_time(), time.monotonic()
    _drive(producers, began + asked.seconds)
    seconds = time.monotonic() - began
    commits = sorted(each for one in producers for each in one.commit_ns)
    wholes = sorted(each for one in producers for each in one.whole_ns)
    if not commits:
        raise SystemExit("no transaction was committed")
    return {
        "transactions": len(commits),
        "transactions_of_all": len(commits) + warm_up,
        "commits_s": len(commits) / seconds,
        "records_s": len(commits) * asked.records / seconds,
        "commit_p50_us": commits[len(commits) // 2] / 1e3,
        "commit_p99_us": commits[len(commits) * 99 // 100] / 1e3,
        "transaction_p50_us": wholes[len(wholes) // 2] / 1e3,
        "transaction_p99_us": wholes[len(wholes) * 99 // 100] / 1e3,
        "retries": sum(one.retries for one in producers),
        "generator_share": (time.process_time() - before_cpu) / seconds,
    }


def _drive(producers: list[Producer], until: float) -> None:
    selector = selectors.EpollSelector()
    work: dict[str, Iterator[bytes]] = {}
    later: deque[tuple[float, Producer]] = deque()
    left = 0

    def go_on(one: Producer) -> None:
        nonlocal left
        sent = next(work[one.name], None)
        if sent is None:
            left -= 1
        elif sent:
            one.waiting.clear()
            one.connection.sendall(sent)
        else:
            later.append((time.monotonic() + RETRY_AFTER_SECONDS, one))

    for one in producers:
        selector.register(one.connection, selectors.EVENT_READ, (one, bytearray()))
        work[one.name] = one.run(until)
        left += 1
        go_on(one)
    give_up_at = until + PATIENCE_SECONDS
    while left:
        if time.monotonic() > give_up_at:
            raise SystemExit("no answer in time")
        wait = max(0.0, later[0][0] - time.monotonic()) if later else 1.0
        for key, _ in selector.select(wait):
            one, got = key.data
            received = one.connection.recv(1 << 16)
            if not received:
                raise SystemExit("the broker closed a connection")
            got += received
            if len(got) >= 4 and len(got) >= 4 + int.from_bytes(got[:4]):
                one.waiting[:] = got[8:]
                got.clear()
                go_on(one)
        while later and later[0][0] <= time.monotonic():
            go_on(later.popleft()[1])
    selector.close()


def many(asked: argparse.Namespace) -> dict[str, float]:
    """InitProducerId for each of many ids, and where asked AddPartitionsToTxn, over a few pipelined connections."""
    names = [f"{asked.topic}-many-{number}" for number in range(asked.ids)]
    await_coordinator(asked.address, names[:1])
    with connect(asked.address) as connection:
        for name in names[:300]:  # so many that each partition of the internal topic has been loaded
            await_init(connection, name)
    began = time.monotonic()
    with connect(asked.address) as connection:
        for first in range(0, len(names), 64):
            some = names[first : first + 64]
            answers = _initialized(connection, some)
            if asked.mode == "open":
                opened = zip(some, answers, strict=True)
                connection.sendall(
                    b"".join(add(name, answer[2], answer[3], asked.topic, 0) for name, answer in opened)
                )
                for _ in some:
                    error = struct.unpack_from(">h", _answer(connection), 4 + 4 + 2 + len(asked.topic) + 8)[0]
                    if error:
                        raise SystemExit(f"AddPartitionsToTxn: error {error}")
                if first == 0:
                    ended = {"producer_id": answers[0][2], "epoch": answers[0][3]}
    seconds = time.monotonic() - began
    found = {"ids_s": len(names) / seconds, "ids": float(len(names))}
    return found | (ended if asked.mode == "open" else {})


def _initialized(connection: socket.socket, names: list[str]) -> list[tuple[int, int, int, int]]:
    """InitProducerId of all at once; again for those that were refused because a block of producer ids was used up."""
    found: dict[str, tuple[int, int, int, int]] = {}
    until = time.monotonic() + PATIENCE_SECONDS
    while left := [name for name in names if name not in found]:
        connection.sendall(b"".join(init(name) for name in left))
        for name in left:
            answer = struct.unpack_from(">ihqh", _answer(connection))
            if not answer[1]:
                found[name] = answer
            elif answer[1] not in RETRIABLE or time.monotonic() > until:
                raise SystemExit(f"InitProducerId: error {answer[1]}")
    return [found[name] for name in names]


def _answer(connection: socket.socket) -> bytes:
    size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
    return connection.recv(size, socket.MSG_WAITALL)[4:]


def first(asked: argparse.Namespace) -> dict[str, float]:
    """When EndTxn of the first open id was answered without an error."""
    name = f"{asked.topic}-many-0"
    until = time.monotonic() + PATIENCE_SECONDS
    sent = end(name, asked.producer_id, asked.epoch, version=1)
    while time.monotonic() < until:
        try:
            with connect(asked.address) as connection:
                while time.monotonic() < until:
                    error = struct.unpack_from(">h", ask(connection, sent), 4)[0]
                    if not error:
                        return {"answered_ns": float(time.monotonic_ns())}
                    if error not in RETRIABLE:
                        raise SystemExit(f"EndTxn: error {error}")
                    time.sleep(RETRY_AFTER_SECONDS)
        except (OSError, struct.error):
            time.sleep(0.005)
    raise SystemExit("no commit in time")


def client(asked: argparse.Namespace) -> dict[str, float]:
    """Transactions of one record through librdkafka."""
    from confluent_kafka import Producer as Client

    producer = Client(
        {"bootstrap.servers": asked.address, "transactional.id": f"{asked.topic}-client", "linger.ms": 0}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    value, commits, wholes, warm_up = b"x" * RECORD_BYTES, [], [], 0
    began = time.monotonic()
    before_cpu = time.process_time()
    while (now := time.monotonic()) < began + asked.warmup + asked.seconds:
        begun_ns = time.monotonic_ns()
        producer.begin_transaction()
        producer.produce(asked.topic, value, partition=0)
        producer.flush(PATIENCE_SECONDS)
        ended_ns = time.monotonic_ns()
        producer.commit_transaction(PATIENCE_SECONDS)
        if now < began + asked.warmup:
            warm_up += 1
            continue
        commits.append(time.monotonic_ns() - ended_ns)
        wholes.append(time.monotonic_ns() - begun_ns)
    commits.sort()
    wholes.sort()
    return {
        "transactions_of_all": len(commits) + warm_up,
        "commits_s": len(commits) / asked.seconds,
        "commit_p50_us": commits[len(commits) // 2] / 1e3,
        "commit_p99_us": commits[len(commits) * 99 // 100] / 1e3,
        "transaction_p50_us": wholes[len(wholes) // 2] / 1e3,
        "transaction_p99_us": wholes[len(wholes) * 99 // 100] / 1e3,
        "generator_share": (time.process_time() - before_cpu) / (asked.warmup + asked.seconds),
    }


def copy(asked: argparse.Namespace) -> dict[str, float]:
    """Consume, transform, produce: each 100 records and their offset are one transaction."""
    from confluent_kafka import Consumer
    from confluent_kafka import Producer as Client

    filler = Client({"bootstrap.servers": asked.address})
    for number in range(asked.ids):
        filler.produce(asked.source, b"%0100d" % number, partition=0)
        filler.poll(0)
    filler.flush(PATIENCE_SECONDS)
    producer = Client(
        {"bootstrap.servers": asked.address, "transactional.id": f"{asked.topic}-copy", "linger.ms": 0}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": asked.address,
            "group.id": f"{asked.topic}-copy",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([asked.source])
    copied, began, before_cpu = 0, 0.0, 0.0
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while copied < asked.ids:
        if time.monotonic() > give_up_at:
            raise SystemExit(f"only {copied} records were copied in time")
        messages = consumer.consume(100, timeout=0.5)
        if not messages:
            continue
        if not began:  # the group has settled
            began, before_cpu = time.monotonic(), time.process_time()
        producer.begin_transaction()
        for message in messages:
            if message.error():
                raise SystemExit(str(message.error()))
            producer.produce(asked.topic, (message.value() or b"")[::-1], partition=0)
        place = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(place, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
        producer.commit_transaction(PATIENCE_SECONDS)
        copied += len(messages)
    seconds = time.monotonic() - began
    consumer.close()
    return {
        "records_s": copied / seconds,
        "generator_share": (time.process_time() - before_cpu) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("commit", "ids", "open", "first", "client", "copy"))
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--source", default="")
    parser.add_argument("--records", type=int, default=1)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--version", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warmup", type=float, default=0.5)
    parser.add_argument("--ids", type=int, default=10_000)
    parser.add_argument("--producer-id", type=int, default=-1)
    parser.add_argument("--epoch", type=int, default=-1)
    asked = parser.parse_args()
    run = {"commit": commit, "ids": many, "open": many, "first": first, "client": client, "copy": copy}[
        asked.mode
    ]
    print(json.dumps(run(asked)))


if __name__ == "__main__":
    main()
