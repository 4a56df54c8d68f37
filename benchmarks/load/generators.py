"""One function for each generator. It returns what was measured, or raises Void at the first error seen."""

import json
import os
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.load import build
from benchmarks.places import ROOT
from benchmarks.void import Void

PATIENCE_SECONDS = 300.0
AT_ONCE = ("fetch.queue.backoff.ms=0", "fetch.wait.max.ms=10")
"""Else librdkafka waits a second whenever a batch, or an answer of many partitions, has filled its queue; and half a
second, or a whole one, when it asks for partitions that it has read to their end before it knows where to begin with
the others. It does so in some rounds and not in others, beside any broker, and that would be what is measured."""
IDEMPOTENT = "enable.idempotence=true"
JVM_WARM_UP_SECONDS = 3.0
INIT_PRODUCER_ID = 22, 0
"""API and version."""
PRODUCER_ID_ANSWER = struct.Struct(">iiihqh")
"""Size, correlation id, throttle time, error code, producer id, epoch."""
NOT_YET = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
HARMLESS = re.compile(
    r"%\d\|[\d.]+\|CONFWARN\||"
    r"% (Sending \d+ messages|\d+ backpressures for|Average application fetch|Waiting for group|Group rebalanced)"
)
"""How lines of rdkafka_performance begin that tell of no error: of librdkafka's log (level, time, name) those about
settings, and of its own, at the verbosity that `-u` leaves, how it goes on. All others that begin with % do."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Records streamed in or out by `rdkafka_performance`."""

    records: int
    payload_bytes: int
    seconds: float
    cpu_seconds: float

    @property
    def mb_s(self) -> float:
        return self.payload_bytes / self.seconds / 1e6

    @property
    def records_s(self) -> float:
        return self.records / self.seconds

    @property
    def generator_share(self) -> float:
        """Cores used by the generator itself."""
        return self.cpu_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests asked one after the other by one of our own generators; times in µs, of the answers only."""

    requests: int
    seconds: float
    requests_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    cpu_share: float
    acked_records: int
    """Of the whole run, warm-up too: what the log must have grown by."""
    acked_requests: int = 0
    records_read: int = 0
    bytes_read: int = 0
    answered: Sequence[int] = ()
    """Requests of each connection of `one_record`, of the whole run."""


def one_record(
    mode: str,
    address: str,
    *,
    topic: str,
    seconds: float,
    connections: int = 1,
    depth: int = 1,
    records: int = 1,
    record_bytes: int = 100,
    partitions: int = 1,
    acks: int = 1,
    max_bytes: int = 1 << 20,
    groups: int = 1,
    warmup_ms: int = 500,
    requests: int = 0,
) -> Requests:
    """Our generator in mode `produce`, `latency`, `fetch` or `commit`.

    `requests`, where it is not 0: so many of them, without warm-up; `seconds` is then how long that may take.
    `latency` knows no number. Raises Void.
    """
    options = {
        "connections": connections,
        "depth": depth,
        "seconds": max(1, round(seconds)),
        "warmup_ms": warmup_ms,
        "records": records,
        "record_bytes": record_bytes,
        "partitions": partitions,
        "acks": acks,
        "max_bytes": max_bytes,
        "groups": groups,
        "requests": requests,
    }
    words = [word for name, value in options.items() for word in (name, str(value))]
    return Requests(**json.loads(_run([build.one_record(), mode, address, topic, *words])))


def await_coordinator(address: str, topic: str, *, groups: int, patience_seconds: int = 120) -> int:
    """The monotonic clock, ns, when the first `groups` of our generator's groups could commit. Raises Void."""
    words = [build.one_record(), "loaded", address, topic, "groups", groups, "seconds", patience_seconds]
    at_ns: int = json.loads(_run([str(word) for word in words]))["acked_at_ns"]
    return at_ns


def await_producer_ids(address: str, *, patience_seconds: float = 30.0) -> None:
    """Until one is given out. Kafka says first that it has yet to load them, and a client asks again half a second
    later: without this, within the measured time. Raises Void."""
    host, _, port = address.rpartition(":")
    # Neither a client id nor a transactional id.
    ask = struct.pack(">ihhihhi", 16, *INIT_PRODUCER_ID, 0, -1, -1, 60_000)
    until = time.monotonic() + patience_seconds
    try:
        with (
            socket.create_connection((host, int(port)), timeout=patience_seconds) as client,
            client.makefile("rb") as answers,
        ):
            while True:
                client.sendall(ask)
                _length, _correlation_id, _throttle_ms, error, _id, _epoch = PRODUCER_ID_ANSWER.unpack(
                    answers.read(PRODUCER_ID_ANSWER.size)
                )
                if not error:
                    return
                if error not in NOT_YET or time.monotonic() > until:
                    raise Void(f"no producer id: error code {error}")
                time.sleep(0.02)
    except (OSError, struct.error) as lost:
        raise Void(f"no producer id: {lost}") from lost


def committed_offset(partition: int) -> int:
    """What our generator commits of a partition, as `frames.h` has it."""
    return 1_000_000 + 1_009 * partition


def last_committed(asked: Requests) -> list[int]:
    """The last offset that `commit` had acknowledged in its one group, of each partition: connection n has the n-th."""
    return [committed_offset(partition) + answered - 1 for partition, answered in enumerate(asked.answered)]


def check_committed(address: str, topic: str, offsets: Sequence[int], *, groups: Iterable[int]) -> None:
    """Asks what those groups of our generator have committed. Raises Void where it is not `offsets`, by partition."""
    expected = dict(enumerate(offsets))
    for group in groups:
        name = f"bench-group-{group:06d}"
        consumer = Consumer({"bootstrap.servers": address, "group.id": name, "log_level": 0})
        try:
            asked = [TopicPartition(topic, partition) for partition in expected]
            found = {each.partition: each.offset for each in consumer.committed(asked, timeout=30)}
        except KafkaException as error:
            raise Void(f"{name} was not told what it has committed: {error}") from error
        finally:
            consumer.close()
        if found != expected:
            wrong = [partition for partition in expected if found.get(partition) != expected[partition]]
            raise Void(f"{name} has lost what it had committed of partitions {wrong}")


class Knocker:
    """Knocks at an address where nobody may listen yet, until one record is acknowledged."""

    def __init__(self, address: str, topic: str, *, patience_seconds: int = 240) -> None:
        words: list[str | Path] = [
            build.one_record(),
            "first",
            address,
            topic,
            "seconds",
            str(patience_seconds),
        ]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def acked_at_ns(self) -> int:
        """The monotonic clock when the acknowledgement came. Raises Void when it never did."""
        said, complaint = self._process.communicate()
        if self._process.returncode:
            raise Void(f"first record: {complaint.strip()}")
        at_ns: int = json.loads(said)["acked_at_ns"]
        return at_ns

    def cancel(self) -> None:
        """Nobody will come."""
        self._process.kill()
        self._process.communicate()


class IdleConnections:
    """Open connections that have said ApiVersions and then nothing, until `close()`."""

    def __init__(self, address: str, connections: int) -> None:
        self._process = subprocess.Popen(
            [build.one_record(), "idle", address, "connections", str(connections)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Void(f"idle connections: {self._process.communicate()[1].strip()}")
        self.connects_s: float = json.loads(line)["connects_s"]

    def close(self) -> None:
        """Raises Void when some of them were open no more."""
        complaint = self._process.communicate()[1].strip()
        if self._process.returncode:
            raise Void(f"idle connections: {complaint}")


def transactions(mode: str, address: str, topic: str, **options: float | str) -> dict[str, float]:
    """What `load/transactions.py` measured in a mode; `options` are its flags. Raises Void."""
    words = [sys.executable, "-m", "benchmarks.load.transactions", mode, address, topic]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    told: dict[str, float] = json.loads(_run(words))
    return told


def delayed(mode: str, address: str, inbox: str, outbox: str, **options: float) -> dict[str, float]:
    """What `load/delayed.py` measured in a mode; `options` are its flags. Raises Void."""
    words = [sys.executable, "-m", "benchmarks.load.delayed", mode, address, inbox, outbox]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    told: dict[str, float] = json.loads(_run(words))
    return told


def python_client(
    build: Path,
    client: str,
    way: str,
    address: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    batch_bytes: int | None = None,
) -> dict[str, float]:
    """What `load/python_clients.py` measured; the native client is taken from `build`. Raises Void."""
    program = Path(__file__).with_name("python_clients.py")
    words = ["env", f"PYTHONPATH={build}", sys.executable, "-P", program, client, way, address, topic]
    words += [records, record_bytes] + ([] if batch_bytes is None else [batch_bytes])
    told: dict[str, float] = json.loads(_run([str(word) for word in words]))
    return told


def lanes(
    build: Path, mode: str, topic: str, *, seconds: float, pids: Iterable[int], **given: str | int
) -> dict[str, dict[str, float]]:
    """What `load/lanes.py` measured in a mode: way → figures; `given` are its words. Raises Void."""
    program = Path(__file__).with_name("lanes.py")
    words = ["env", f"PYTHONPATH={build}:{ROOT}", sys.executable, "-P", program, mode, topic, seconds]
    words += [f"{name}={value}" for name, value in given.items()]
    words.append(f"pids={','.join(map(str, pids))}")
    told: dict[str, dict[str, float]] = json.loads(_run([str(word) for word in words]))
    return told


def secure(
    mode: str, topic: str, *, seconds: float, pids: Iterable[int], **given: str
) -> dict[str, dict[str, float]]:
    """What `load/secure.py` measured in a mode: way → figures; `given` are its words. Raises Void."""
    words = [sys.executable, "-m", "benchmarks.load.secure", mode, topic, str(seconds)]
    words += [f"{name}={value}" for name, value in given.items()]
    words.append(f"pids={','.join(map(str, pids))}")
    told: dict[str, dict[str, float]] = json.loads(_run(words))
    return told


class AuthenticatedConnections:
    """So many connections, authenticated, that say nothing more, held by another process until `close`. Raises Void."""

    def __init__(self, way: str, at: str, ca: str, connections: int) -> None:
        words = [sys.executable, "-m", "benchmarks.load.secure", "idle", "-", "0"]
        words += [f"way={way}", f"at={at}", f"ca={ca}", f"connections={connections}"]
        self._holder = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None, "a pipe was asked for"
        if not self._holder.stdout.readline():
            raise Void(f"{connections} connections were not authenticated")

    def close(self) -> None:
        """Close all."""
        self._holder.communicate()


def java_transactions(address: str, topic: str, libs: Path, *, seconds: float) -> dict[str, float]:
    """Transactions of one record through Kafka's own client, out of `libs`, which speaks version 2. Raises Void.

    The JVM compiles the program when it starts it, before anything is measured.
    """
    source = Path(__file__).with_name("TransactionalClient.java")
    quiet = ("-Dlog4j2.level=WARN", "-Dlog4j2.statusLoggerLevel=OFF")
    words = (
        "java",
        "-Xmx256m",
        *quiet,
        "-cp",
        f"{libs}/*",
        source,
        address,
        topic,
        JVM_WARM_UP_SECONDS,
        seconds,
    )
    told: dict[str, float] = json.loads(_run([str(word) for word in words]).strip().splitlines()[-1])
    if told["epoch"] < 1:
        raise Void("the client did not speak version 2: no end has raised its epoch")
    return told


def client_latency(
    address: str, topic: str, *, seconds: float, record_bytes: int = 100, acks: str = "1"
) -> Requests:
    """One record at a time through librdkafka. Raises Void."""
    words: list[str | Path] = [
        build.client_latency(),
        address,
        topic,
        str(seconds),
        "500",
        str(record_bytes),
        acks,
    ]
    return Requests(**json.loads(_run(words)))


@dataclass(frozen=True, slots=True)
class FixedRate:
    """Records written and read back at a fixed rate; times in µs from when each was due."""

    records: int
    first_round_seconds: float
    """Until one record had gone to each partition and come back, unhurried."""
    whole_seconds: float
    produce_p50_us: float
    produce_p99_us: float
    produce_p999_us: float
    end_p50_us: float
    end_p99_us: float
    end_p999_us: float
    cpu_share: float


def fixed_rate(
    address: str,
    topics: Sequence[str],
    *,
    partitions: int,
    records_s: int,
    seconds: float,
    record_bytes: int = 1024,
    warmup_ms: int = 1000,
) -> FixedRate:
    """`records_s` records a second over all partitions of `topics`, which are empty. Raises Void."""
    await_producer_ids(address)
    words = [build.fixed_rate(), address, partitions, records_s, seconds, warmup_ms, record_bytes, *topics]
    return FixedRate(**json.loads(_run([str(word) for word in words])))


def stream_in(
    address: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    partition: int | None = 0,
    settings: Sequence[str] = (),
) -> Stream:
    """Produce at full rate with librdkafka's defaults: acks=all, linger 5 ms; partition None: all of them.

    Raises Void at a lost connection, a request that timed out or failed, a record that was sent more than once.
    """
    if IDEMPOTENT in settings:
        await_producer_ids(address)
    words: list[str | Path] = [build.rdkafka_performance(), "-P", "-b", address, "-t", topic]
    words += [] if partition is None else ["-p", str(partition)]
    words += ["-s", str(record_bytes), "-c", str(records), "-a", "-1", "-X", "linger.ms=5"]
    words += ["-X", f"plugin.library.paths={build.count_sent()}"]
    row, cpu_seconds = _stream(words, settings)
    if row["dr"] != records or row["dr_err"]:
        raise Void(f"{row['dr']:.0f} of {records} records delivered, {row['dr_err']:.0f} errors")
    if row.get("sent") != records:
        raise Void(f"{row.get('sent')} records were sent for {records}: some more than once")
    return Stream(records, records * record_bytes, row["elapsed"] / 1000, cpu_seconds)


def stream_out(
    address: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    partitions: int = 1,
    group: str | None = None,
    settings: Sequence[str] = (),
    from_start: bool = False,
) -> Stream:
    """Consume `records`, all that the topic holds, from the beginning, as the only member of `group` or without one.

    rdkafka_performance starts its clock at the first of them. Where one batch is many records, most of the work is done
    by then: `from_start` takes the time from the program's start to its end.
    """
    words: list[str | Path] = [
        build.rdkafka_performance(),
        *(("-C",) if group is None else ("-G", group, "-X", "auto.offset.reset=earliest")),
        "-b",
        address,
        "-t",
        topic,
        "-o",
        "beginning",
    ]
    for partition in range(partitions):
        words += ["-p", str(partition)]
    if partitions > 1:
        settings = (*settings, *AT_ONCE)
    began = time.monotonic()
    row, cpu_seconds = _stream([*words, "-c", str(records)], settings)
    whole_seconds = time.monotonic() - began
    if row["msgs"] != records or row["rx_err"]:
        raise Void(f"{row['msgs']:.0f} of {records} records read, {row['rx_err']:.0f} errors")
    if row["bytes"] != row["msgs"] * record_bytes:
        raise Void(f"{row['bytes']:.0f} bytes read in {row['msgs']:.0f} records of {record_bytes}")
    if partitions == 1 and row["offset"] != row["msgs"] - 1:
        raise Void(f"the last of {row['msgs']:.0f} records has offset {row['offset']:.0f}")
    seconds = whole_seconds if from_start else row["elapsed"] / 1000
    return Stream(int(row["msgs"]), int(row["bytes"]), seconds, cpu_seconds)


def streams_out(
    address: str, topic: str, *, readers: int, records: int, record_bytes: int, in_groups: bool = False
) -> Stream:
    """`readers` programs at once, each of which reads all records, in a group of its own where `in_groups`; together as
    one stream."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    with ThreadPoolExecutor(readers) as pool:
        asked = [
            pool.submit(
                stream_out,
                address,
                topic,
                records=records,
                record_bytes=record_bytes,
                group=f"{topic}-{number}-{time.monotonic_ns()}" if in_groups else None,
            )
            for number in range(readers)
        ]
        read = [one.result() for one in asked]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Each reader's own clock starts at its first record, which may be late: for many, the clock on the wall counts.
    seconds = time.monotonic() - began if readers > 1 else read[0].seconds
    return Stream(
        records=sum(one.records for one in read),
        payload_bytes=sum(one.payload_bytes for one in read),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
    )


def plain_writes(folder: Path, length_bytes: int) -> float:
    """MB/s of a plain loop of pwrite to a fresh file on the broker's disk: what the page cache takes today."""
    piece = bytes(128 << 10)
    with tempfile.TemporaryFile(dir=folder) as file:
        handle = file.fileno()
        began = time.perf_counter()
        for at in range(0, length_bytes, len(piece)):
            os.pwrite(handle, piece, at)
        return length_bytes / (time.perf_counter() - began) / 1e6


def plain_reads(files: Sequence[Path]) -> float:
    """MB/s of a plain loop of preadv over files, front to back: what the disk, or the page cache, gives today."""
    buffer = bytearray(1 << 20)
    length_bytes = 0
    began = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                length_bytes += got
    return length_bytes / (time.perf_counter() - began) / 1e6


def _stream(words: Sequence[str | Path], settings: Sequence[str]) -> tuple[dict[str, float], float]:
    more = [word for setting in settings for word in ("-X", setting)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = _ended([*words, "-u", "-i", "80000000", *more])
    text = done.stdout
    if complaints := _complaints(done):
        raise Void(f"rdkafka_performance: {complaints[0]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    table = [
        [cell.strip() for cell in line.split("|")[1:]] for line in text.splitlines() if line.startswith("|")
    ]
    # The head comes again and again; the last row of numbers has the totals.
    names = next((cells for cells in table if cells[0] == "elapsed"), [])
    values = [float(cell) for cell in table[-1]] if names and table[-1] != names else []
    if len(names) != len(values) or not any(values):
        raise Void(f"rdkafka_performance said nothing to count: {text[-500:]}")
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = dict(zip(names, values, strict=True))
    if sent := re.search(r"^sent (\d+)$", done.stderr, re.MULTILINE):  # of count_sent.c
        row["sent"] = float(sent[1])
    return row, cpu_seconds


def _run(words: Sequence[str | Path]) -> str:
    return _ended(words).stdout


def _complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a librdkafka program says of errors, be they its end or not."""
    lines = (*done.stdout.splitlines(), *done.stderr.splitlines())
    return [line for line in lines if line.startswith("%") and not HARMLESS.match(line)]


def _ended(words: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    started = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired as late:
        raise Void(f"{Path(words[0]).name} did not end within {PATIENCE_SECONDS:.0f} s") from late
    if done.returncode:
        silent = f"ended by signal {-done.returncode}" if done.returncode < 0 else "nothing"
        reasons = [line for line in done.stderr.strip().splitlines() if not HARMLESS.match(line)]
        said = (reasons or _complaints(done)[:1] or done.stdout.strip().splitlines() or [silent])[-1]
        raise Void(f"{Path(words[0]).name} after {time.monotonic() - started:.1f} s: {said}")
    return done
