"""What a good client waits for while thirty connections ask for as much as they can (decisions 0078 and 0091)."""

import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.brokers.broker import create_topics
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import hostile
from benchmarks.void import Void

CONNECTIONS = 30
BOUND_MS = 500.0
SETTLE_SECONDS = 1.0
"""The attack has begun; what it asked first is under way."""
PAUSE_SECONDS = 0.005
GOOD_TOPIC = "fairness-good"
GOOD_GROUP = "good"
PATIENCE_SECONDS = 120.0

NOT_FOR_MOCK = frozenset({"mock"})
# One record of 100 bytes without a key, in a batch of version 2; its checksum is filled in below.
_RECORD = bytes([0, 0, 0, 1]) + b"\xc8\x01" + bytes(100) + b"\x00"


class Good:
    """One connection: a record in, then out again, then a group's offset, one request after the other."""

    def __init__(self, address: str, topic: str) -> None:
        host, port = address.rsplit(":", 1)
        self._sock = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        batch = _batch()
        partition = struct.pack(">ii", 0, len(batch)) + batch
        body = struct.pack(">hhi", -1, 1, 30_000) + hostile.array(
            [hostile.text(topic) + hostile.array([partition])]
        )
        self._produce = hostile.frame(0, 3, body)
        self._topic = topic
        self.offset = 0
        partition = hostile.array([struct.pack(">i", 0)])
        topics = hostile.array([hostile.text(topic) + partition])
        self._offset_fetch = hostile.frame(9, 5, hostile.text(GOOD_GROUP) + topics)

    def produce(self) -> float:
        """Milliseconds to the acknowledgement."""
        answer, waited_ms = self._ask(self._produce)
        at = 8 + 2 + len(self._topic) + 4 + 4
        error, self.offset = struct.unpack_from(">hq", answer, at)
        if error:
            raise Void(f"a record was refused with error {error}")
        return waited_ms

    def fetch(self) -> float:
        """Milliseconds to the answer with the record last produced."""
        partition = struct.pack(">iqi", 0, self.offset, 1 << 20)
        topics = hostile.array([hostile.text(self._topic) + hostile.array([partition])])
        _, waited_ms = self._ask(hostile.frame(1, 4, struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0) + topics))
        return waited_ms

    def commit(self) -> None:
        """Commits an offset of the group, as soon as its coordinator is there."""
        until = time.monotonic() + PATIENCE_SECONDS
        partition = struct.pack(">iqh", 0, 1, 0)
        topics = hostile.array([hostile.text(self._topic) + hostile.array([partition])])
        member = hostile.text(GOOD_GROUP) + struct.pack(">i", -1) + hostile.text("")
        commit = hostile.frame(8, 2, member + struct.pack(">q", -1) + topics)
        while True:
            self._ask(hostile.frame(10, 0, hostile.text(GOOD_GROUP)))
            (error,) = struct.unpack(">h", self._ask(commit)[0][-2:])
            if not error:
                return
            if time.monotonic() > until:
                raise Void(f"an offset was refused with error {error}")
            time.sleep(0.1)

    def fetch_offset(self) -> float:
        """Milliseconds to the answer with the offset that was committed."""
        answer, waited_ms = self._ask(self._offset_fetch)
        (error,) = struct.unpack(">h", answer[-2:])
        if error:
            raise Void(f"an offset was not fetched: error {error}")
        return waited_ms

    def _ask(self, frame: bytes) -> tuple[bytes, float]:
        began = time.monotonic()
        self._sock.sendall(frame)
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length), (time.monotonic() - began) * 1e3

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self._sock.recv(length - len(data))
            if not part:
                raise Void("the broker closed the good client's connection")
            data += part
        return data

    def close(self) -> None:
        self._sock.close()


def _batch() -> bytes:
    record = bytes([len(_RECORD) * 2 & 0x7F | 0x80, len(_RECORD) * 2 >> 7]) + _RECORD
    now_ms = int(time.time() * 1e3)
    tail = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + record
    head = struct.pack(">qiib", 0, len(tail) + 9, -1, 2)
    return head + struct.pack(">I", _crc32c(tail)) + tail


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _beside(kind: str, *, leaves: bool) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        address = bench.broker.address
        create_topics(address, [hostile.TOPIC.format(n) for n in range(hostile.TOPICS)], 1)
        create_topics(address, [GOOD_TOPIC], 1)
        return beside(address, GOOD_TOPIC, kind, leaves=leaves, seconds=max(5.0, bench.scale.seconds))

    return run


def beside(address: str, topic: str, kind: str, *, leaves: bool, seconds: float) -> Figures:
    """The good client's figures while `kind` goes on. Raises Void where it waits for longer than the bound."""
    good = Good(address, topic)
    good.commit()
    alone = [good.produce() + good.fetch() for _ in range(200)]
    command = [sys.executable, "-m", "benchmarks.load.hostile", address, kind, str(CONNECTIONS)]
    command += [str(seconds + SETTLE_SECONDS), *(["--leave"] if leaves else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack:
        assert attack.stdout is not None
        attack.stdout.readline()
        time.sleep(SETTLE_SECONDS)
        produced: list[float] = []
        fetched: list[float] = []
        offsets: list[float] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            produced.append(good.produce())
            fetched.append(good.fetch())
            offsets.append(good.fetch_offset())
            time.sleep(PAUSE_SECONDS)
        answers, _ = attack.communicate(timeout=PATIENCE_SECONDS)
    after = [good.produce() + good.fetch() for _ in range(20)]
    good.close()
    figures = {
        "produce_p99_ms": _p99(produced),
        "fetch_p99_ms": _p99(fetched),
        "offset_fetch_p50_ms": statistics.median(offsets),
        "offset_fetch_p99_ms": _p99(offsets),
        "most_ms": max(*produced, *fetched, *offsets),
        "alone_ms": statistics.median(alone),
        "after_most_ms": max(after),
        "requests": float(len(produced) + len(fetched) + len(offsets)),
        "hostile_answers": float(answers),
    }
    late = max(figures[each] for each in ("produce_p99_ms", "fetch_p99_ms", "offset_fetch_p99_ms"))
    if late > BOUND_MS:
        raise Void(f"a good client waited {late:.0f} ms (p99) beside {kind}; {figures}")
    return figures


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


CASES = tuple(
    Case(
        f"fairness_{kind}{'_leaving' if leaves else ''}",
        f"a record in and out and an offset, beside {CONNECTIONS} connections with {hostile.PIPELINED} requests each: "
        f"{kind.replace('_', ' ')}{', closed after half a second, again and again' if leaves else ''}",
        _beside(kind, leaves=leaves),
        not_for=NOT_FOR_MOCK,
        by_name=True,
        own=True,
    )
    for kind in hostile.KINDS
    for leaves in (False, True)
)
