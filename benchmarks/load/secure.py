"""Requests over plain TCP, TLS and SASL, from one Python program: what authentication and encryption cost.

    python -m benchmarks.load.secure latency    TOPIC SECONDS ca=FILE plain=HOST:PORT tls=HOST:PORT [pids=N,N]
    python -m benchmarks.load.secure stream     TOPIC SECONDS (the same)
    python -m benchmarks.load.secure handshakes -     SECONDS ca=FILE tls=HOST:PORT [pids=N,N]
    python -m benchmarks.load.secure idle       -     SECONDS ca=FILE way=sasl|sasl_tls at=HOST:PORT connections=N

`latency` sends Produce requests of one record of 100 B, acks=1, and waits for each answer. `stream` writes batches of
a megabyte of 1 KiB records, and reads them back. Ways take turns, so that what drifts drifts under all of them.
`handshakes` opens connections with full TLS handshakes, without resumption, each closed after it. They print JSON:
way → figures. `idle` authenticates N connections by PLAIN, prints one line, and holds them until its input ends.

OpenSSL encrypts here, too, in the same thread: what a client pays is in each figure of speed. The broker's processor
time is not the client's.
"""

from __future__ import annotations

import json
import resource
import socket
import ssl
import statistics
import struct
import sys
import time
from typing import Final

from benchmarks.brokers.certificate import PASSWORD, USER
from benchmarks.load.hostile import text
from benchmarks.load.transactions import connect
from benchmarks.load.ways import Meter, Tcp, Way, fetch, plain_batch, produce, produced

TURN_REQUESTS: Final = 200
TURN_BATCHES: Final = 48
TURNS: Final = 4
IN_FLIGHT: Final = 4
TURN_HANDSHAKES: Final = 50
RECORDS_OF_A_BATCH: Final = 950
RECORD_BYTES: Final = 1024
FETCH_BYTES: Final = 1 << 20


def context_of(ca: str) -> ssl.SSLContext:
    """A client's context that trusts one authority."""
    return ssl.create_default_context(cafile=ca)


def encrypted(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection after its handshake."""
    return context.wrap_socket(connect(address, timeout_s=None), server_hostname="localhost")


def log_in(connected: socket.socket) -> None:
    """SaslHandshake and SaslAuthenticate by PLAIN. Raises SystemExit."""
    token = b"\x00" + USER.encode() + b"\x00" + PASSWORD.encode()
    for key, version, body in (
        (17, 1, text("PLAIN")),
        (36, 0, struct.pack(">i", len(token)) + token),
    ):
        sent = struct.pack(">hhi", key, version, 1) + text("bench") + body
        connected.sendall(struct.pack(">i", len(sent)) + sent)
        answer = _frame(connected)
        if error := int.from_bytes(answer[4:6]):
            raise SystemExit(f"request {key} was answered with error {error}")


def _frame(connected: socket.socket) -> bytes:
    """What `transactions.ask` receives; the sockets of `ssl` take no MSG_WAITALL."""
    held = b""
    while len(held) < 4 or len(held) < 4 + int.from_bytes(held[:4]):
        got = connected.recv(1 << 16)
        if not got:
            raise SystemExit("the broker closed the connection")
        held += got
    return held[4:]


def latency(ways: dict[str, Way], topic: str, seconds: float, pids: list[int]) -> dict[str, dict[str, float]]:
    """One request at a time; for each way its percentiles. `all`: how many were acknowledged."""
    request = produce(topic, plain_batch(1))
    taken: dict[str, list[int]] = {name: [] for name in ways}
    acknowledged, turn, until = 0, 0, 0.0
    while turn <= 1 or time.monotonic() < until:  # the first turn warms up
        for name, way in ways.items():
            some = []
            for _ in range(TURN_REQUESTS):
                sent_at = time.perf_counter_ns()
                way.send(request)
                produced(bytes(way.receive()[0]), topic)
                some.append(time.perf_counter_ns() - sent_at)
            acknowledged += len(some)
            if turn:
                taken[name] += some
        turn += 1
        until = until or time.monotonic() + seconds * len(ways)
    figures = {"all": {"acknowledged": float(acknowledged)}}
    for name, each in taken.items():
        cuts = statistics.quantiles(each, n=100)
        figures[name] = {
            "p50_us": cuts[49] / 1e3,
            "p99_us": cuts[98] / 1e3,
            "requests_s": 1e9 / statistics.mean(each),
        }
    return figures


def stream(ways: dict[str, Way], topic: str, seconds: float, pids: list[int]) -> dict[str, dict[str, float]]:
    """Batches of a megabyte in, and the same out; MB/s and the broker's processor seconds per GB for each way."""
    request = produce(topic, plain_batch(RECORDS_OF_A_BATCH, RECORD_BYTES))
    spent = {(name, to): 0.0 for name in ways for to in ("in", "out")}
    moved = dict.fromkeys(spent, 0)
    meters = {key: Meter(pids) for key in spent}
    places = dict.fromkeys(ways, 0)
    batches, until, turn = 0, time.monotonic() + seconds * len(ways), 0
    while turn < TURNS or time.monotonic() < until:
        for name, way in ways.items():
            meters[name, "in"].start()
            started = time.perf_counter()
            for number in range(TURN_BATCHES + IN_FLIGHT):
                if number < TURN_BATCHES:
                    way.send(request)
                if number >= IN_FLIGHT:
                    produced(bytes(way.receive()[0]), topic)
            spent[name, "in"] += time.perf_counter() - started
            meters[name, "in"].stop()
            moved[name, "in"] += TURN_BATCHES * RECORDS_OF_A_BATCH * RECORD_BYTES
            batches += TURN_BATCHES
        for name, way in ways.items():
            meters[name, "out"].start()
            started = time.perf_counter()
            # Each way reads every batch of its own turns and as many of the others', from where it stopped.
            for number in range(TURN_BATCHES + IN_FLIGHT):
                if number < TURN_BATCHES:
                    way.send(fetch(topic, places[name] + number * RECORDS_OF_A_BATCH, FETCH_BYTES))
                if number >= IN_FLIGHT:
                    got = len(way.receive()[0])
                    if got < RECORDS_OF_A_BATCH * RECORD_BYTES:
                        raise SystemExit(f"an answer has {got} bytes")
            places[name] += TURN_BATCHES * RECORDS_OF_A_BATCH
            spent[name, "out"] += time.perf_counter() - started
            meters[name, "out"].stop()
            moved[name, "out"] += TURN_BATCHES * RECORDS_OF_A_BATCH * RECORD_BYTES
        turn += 1
    figures: dict[str, dict[str, float]] = {"all": {"records": float(batches * RECORDS_OF_A_BATCH)}}
    for (name, to), bytes_moved in moved.items():
        figures.setdefault(name, {})[f"{to}_mb_s"] = bytes_moved / spent[name, to] / 1e6
        figures[name][f"{to}_cpu_s_per_gb"] = meters[name, to].seconds / bytes_moved * 1e9
    return figures


def handshakes(
    address: str, context: ssl.SSLContext, seconds: float, pids: list[int]
) -> dict[str, dict[str, float]]:
    """Full handshakes, one after the other: how many a second, and the processor time of both ends."""
    meter, count, taken = Meter(pids), 0, []
    until, used = time.monotonic() + seconds, _own_seconds()
    meter.start()
    while time.monotonic() < until:
        for _ in range(TURN_HANDSHAKES):
            started = time.perf_counter()
            encrypted(address, context).close()
            taken.append(time.perf_counter() - started)
        count += TURN_HANDSHAKES
    meter.stop()
    return {
        "tls": {
            "handshakes_s": count / sum(taken),
            "p50_us": statistics.median(taken) * 1e6,
            "broker_cpu_us": meter.seconds / count * 1e6,
            "client_cpu_us": (_own_seconds() - used) / count * 1e6,
        }
    }


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def idle(way: str, address: str, context: ssl.SSLContext, connections: int) -> None:
    """Authenticate, say so, and hold the connections until the input ends."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held: list[socket.socket] = []
    for _ in range(connections):
        connected = encrypted(address, context) if way == "sasl_tls" else connect(address, timeout_s=None)
        log_in(connected)
        held.append(connected)
    print(json.dumps({"connections": len(held)}), flush=True)
    sys.stdin.read()


def main() -> None:
    """Read the command line of the module's docstring."""
    mode, topic, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    given = dict(word.split("=", 1) for word in sys.argv[4:])
    pids = [int(pid) for pid in given.pop("pids", "").split(",") if pid]
    context = context_of(given["ca"])
    if mode == "idle":
        idle(given["way"], given["at"], context, int(given["connections"]))
        return
    if mode == "handshakes":
        print(json.dumps(handshakes(given["tls"], context, seconds, pids)))
        return
    ways: dict[str, Way] = {
        "plain": Tcp(connect(given["plain"], timeout_s=None)),
        "tls": Tcp(encrypted(given["tls"], context)),
    }
    run = {"latency": latency, "stream": stream}[mode]
    print(json.dumps(run(ways, topic, seconds, pids)))


if __name__ == "__main__":
    main()
