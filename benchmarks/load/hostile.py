"""Connections that ask for as much as they can: `python -m benchmarks.load.hostile HOST:PORT KIND CONNECTIONS SECONDS`.

Each connection keeps PIPELINED requests of one kind in flight and reads all answers. With `--leave` it closes after
half a second, answers or none, and a new one takes its place. Prints a line when it begins, and how many answers came.
"""

import argparse
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

PIPELINED = 16
LEAVES_AFTER_SECONDS = 0.5
READ_BYTES = 1 << 20
MANY = 90_000
"""Just below what one request may hold."""
GROUP_BYTES = 1 << 19
"""group.request.max.bytes: a longer request that names groups is not admitted."""
LARGE_BYTES = 4_000_000
"""A SyncGroup and an OffsetCommit may be longer: just below eight times as long."""
COMMITTED = 14_000
"""Offsets that one batch of `__consumer_offsets` holds."""
GROUP, CONSUMER_GROUP = "hostile", "hostile-c"
TOPIC, TOPICS = "fairness-{}", 500
"""Those that `cases/fairness.py` has made."""
TOPIC_RESOURCE = 2


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def compact(value: str) -> bytes:
    """A short string of a flexible version."""
    encoded = value.encode()
    return bytes([len(encoded) + 1]) + encoded


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def array(elements: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(elements)) + b"".join(elements)


def frame(api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    header = struct.pack(">hhi", api_key, version, 1) + text("hostile") + (b"\x00" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def describe_configs() -> bytes:
    topics = [
        struct.pack(">b", TOPIC_RESOURCE) + text(TOPIC.format(number)) + struct.pack(">i", -1)
        for number in range(TOPICS)
    ]
    return frame(32, 1, array(topics) + b"\x01")


def validate_topics() -> bytes:
    topics = [
        text(f"never-{number}") + struct.pack(">ih", 1, 1) + array(()) + array(()) for number in range(MANY)
    ]
    return frame(19, 2, array(topics) + struct.pack(">i?", 30_000, True))


def find_coordinators() -> bytes:
    keys = b"".join(compact(f"group-{number}") for number in range(MANY))
    return frame(10, 4, b"\x00" + uvarint(MANY + 1) + keys + b"\x00", flexible=True)


def metadata_of_many() -> bytes:
    return frame(3, 4, array([text(f"nowhere-{number}") for number in range(MANY)]) + b"\x00")


def metadata_of_all() -> bytes:
    return frame(3, 4, struct.pack(">i", -1) + b"\x00")


def list_offsets() -> bytes:
    """By time, so that each partition's owner has to look."""
    partition = array([struct.pack(">iq", 0, 1)])
    return frame(
        2, 1, struct.pack(">i", -1) + array([text(TOPIC.format(n)) + partition for n in range(TOPICS)])
    )


def fetch_of_many() -> bytes:
    """From behind the end of partitions that may be there or not; without waiting."""
    partitions = [struct.pack(">iqi", number, 0, 1) for number in range(MANY)]
    topic = text(TOPIC.format(0)) + array(partitions)
    return frame(1, 4, struct.pack(">iiiib", -1, 0, 1, 1, 0) + array([topic]))


def offset_fetch_of_many() -> bytes:
    """As many partitions of one topic as a request of GROUP_BYTES holds, up to MANY."""
    indexes = range(min(MANY, GROUP_BYTES // 4 - 32))
    topic = text(TOPIC.format(0)) + array([struct.pack(">i", number) for number in indexes])
    return frame(9, 5, text(GROUP) + array([topic]))


def offset_commit_of_many() -> bytes:
    """Of partitions that are mostly not there, so that nothing is too large for the log."""
    partitions = [struct.pack(">iqih", number, 1, -1, 0) for number in range(MANY)]
    topic = text(TOPIC.format(0)) + array(partitions)
    return frame(8, 6, text(GROUP) + struct.pack(">i", -1) + text("") + array([topic]))


def offset_commit_of_many_there() -> bytes:
    """As many offsets as one batch of the log holds, all of one partition that is there."""
    partitions = [struct.pack(">iqih", 0, number, -1, 0) for number in range(COMMITTED)]
    topic = text(TOPIC.format(0)) + array(partitions)
    return frame(8, 6, text(GROUP) + struct.pack(">i", -1) + text("") + array([topic]))


def offset_delete_of_many() -> bytes:
    indexes = range(min(MANY, GROUP_BYTES // 4 - 32))
    topic = text(TOPIC.format(0)) + array([struct.pack(">i", number) for number in indexes])
    return frame(47, 0, text(GROUP) + array([topic]))


def leave_group_of_many() -> bytes:
    """Members that the group does not have."""
    member = compact("m") + b"\x00" * 3
    members = uvarint(MANY + 1) + member * MANY
    return frame(13, 5, compact(GROUP) + members + b"\x00", flexible=True)


def sync_group_of_many() -> bytes:
    """Assignments for members that the group does not have, as long as a request may be."""
    assignment = bytes(LARGE_BYTES // MANY - 6)
    one = compact("m") + bytes([len(assignment) + 1]) + assignment + b"\x00"
    member = compact("m") + b"\x00"
    assignments = uvarint(MANY + 1) + one * MANY
    body = compact(GROUP) + struct.pack(">i", 1) + member + b"\x00\x00" + assignments + b"\x00"
    return frame(14, 5, body, flexible=True)


def join_group_of_many() -> bytes:
    """A new member with as many protocols as a request holds."""
    one = compact("p") + b"\x01\x00"
    protocols = uvarint(MANY + 1) + one * MANY
    body = compact(GROUP) + struct.pack(">ii", 30_000, 30_000) + compact("") + b"\x00" + compact("consumer")
    return frame(11, 7, body + protocols + b"\x00", flexible=True)


def heartbeat_of_many() -> bytes:
    """A new member of a consumer group that subscribes to as many topics as a request holds."""
    names = b"".join(compact(f"{number:04x}") for number in range(MANY))
    head = (
        compact(CONSUMER_GROUP) + compact("") + struct.pack(">i", 0) + b"\x00\x00" + struct.pack(">i", 30_000)
    )
    return frame(68, 0, head + uvarint(MANY + 1) + names + b"\x00\x01\x00", flexible=True)


def describe_groups_of_many() -> bytes:
    groups = b"".join(compact(f"{number:04x}") for number in range(MANY))
    return frame(15, 5, uvarint(MANY + 1) + groups + b"\x00\x00", flexible=True)


def delete_groups_of_many() -> bytes:
    groups = b"".join(compact(f"{number:04x}") for number in range(MANY))
    return frame(42, 2, uvarint(MANY + 1) + groups + b"\x00", flexible=True)


GROUP_KINDS: dict[str, Callable[[], bytes]] = {
    "offset_fetch_of_many": offset_fetch_of_many,
    "offset_commit_of_many": offset_commit_of_many,
    "offset_commit_of_many_there": offset_commit_of_many_there,
    "offset_delete_of_many": offset_delete_of_many,
    "leave_group_of_many": leave_group_of_many,
    "sync_group_of_many": sync_group_of_many,
    "join_group_of_many": join_group_of_many,
    "heartbeat_of_many": heartbeat_of_many,
    "describe_groups_of_many": describe_groups_of_many,
    "delete_groups_of_many": delete_groups_of_many,
}
"""Those that the coordinator of groups works on (decision 0091)."""

KINDS: dict[str, Callable[[], bytes]] = {
    "describe_configs": describe_configs,
    "validate_topics": validate_topics,
    "find_coordinators": find_coordinators,
    "metadata_of_many": metadata_of_many,
    "metadata_of_all": metadata_of_all,
    "list_offsets": list_offsets,
    "fetch_of_many": fetch_of_many,
    **GROUP_KINDS,
}


class Hostile:
    """One connection. `received` counts whole answers of all its lives."""

    def __init__(self, address: tuple[str, int], request: memoryview) -> None:
        self._address = address
        self._request = request
        self.received = 0
        self.connect()

    def connect(self) -> None:
        self.sock = socket.create_connection(self._address, 30)
        self.sock.setblocking(False)
        self.began = time.monotonic()
        self._to_send = PIPELINED
        self._sent_bytes = 0  # of the next request
        self._left = 0  # bytes of the answer under way
        self._size = b""

    def turn(self) -> None:
        """Sends what the socket takes, and reads what is there."""
        with suppress(BlockingIOError):
            while self._to_send:
                self._sent_bytes += self.sock.send(self._request[self._sent_bytes :])
                if self._sent_bytes == len(self._request):
                    self._sent_bytes = 0
                    self._to_send -= 1
        with suppress(BlockingIOError):
            self._take(self.sock.recv(READ_BYTES))

    @property
    def wants_to_send(self) -> bool:
        return self._to_send > 0

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError
        while data:
            if not self._left:
                missing = 4 - len(self._size)
                self._size += data[:missing]
                data = data[missing:]
                if len(self._size) < 4:
                    return
                (self._left,) = struct.unpack(">i", self._size)
                self._size = b""
            taken = min(self._left, len(data))
            self._left -= taken
            data = data[taken:]
            if not self._left:
                self.received += 1
                self._to_send += 1


def attack(address: tuple[str, int], kind: str, *, connections: int, seconds: float, leaves: bool) -> int:
    """How many answers came within `seconds`."""
    request, selector = memoryview(KINDS[kind]()), selectors.DefaultSelector()
    ones = [Hostile(address, request) for _ in range(connections)]
    for each in ones:
        selector.register(each.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, each)
    print("begun", flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for key, _ in selector.select(0.1):
            one: Hostile = key.data
            try:
                one.turn()
                is_over = leaves and time.monotonic() - one.began > LEAVES_AFTER_SECONDS
            except ConnectionError:
                is_over = True
            if is_over:
                selector.unregister(one.sock)
                one.sock.close()
                one.connect()
                selector.register(one.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
            else:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.wants_to_send else 0)
                selector.modify(one.sock, events, one)
    return sum(each.received for each in ones)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("connections", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--leave", action="store_true")
    options = parser.parse_args()
    host, port = options.address.rsplit(":", 1)
    address = (host, int(port))
    print(
        attack(
            address,
            options.kind,
            connections=options.connections,
            seconds=options.seconds,
            leaves=options.leave,
        )
    )


if __name__ == "__main__":
    main()
