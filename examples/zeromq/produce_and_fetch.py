"""Produce and fetch records over ZeroMQ, with pyzmq and nothing else. docs/zeromq.md describes what is sent.

    python produce_and_fetch.py ipc:///run/appliance/zeromq TOPIC VALUE...

It prints each record of partition 0 as `offset value`.
"""

import struct
import sys
import time

import zmq

HELLO, WELCOME, OPEN, OPENED, REQUEST, RESPONSE, CREDIT, HEARTBEAT, CLOSE, ERROR = range(1, 11)
MORE = 1
WINDOW = 4 << 20
PRODUCE, FETCH, METADATA = 0, 1, 3
RETRIABLE = {3, 5, 6}  # UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER


def string(text):
    return struct.pack(">H", len(text)) + text.encode()


class Session:
    """One session with broker 0."""

    def __init__(self, context, endpoint):
        welcome = self._ask_once(context, endpoint, HELLO, struct.pack(">Bi", 1, -1) + string("example"))
        _, self.broker_id, length = struct.unpack_from(">BiH", welcome)
        self.socket = self._dealer(context, welcome[7 : 7 + length].decode())
        self._send(OPEN, bytes(16), struct.pack(">iQ", self.broker_id, WINDOW) + string("example"))
        self.token = self._receive()[2][:16]
        self.correlation_id = 0

    def ask(self, api_key, version, *frames):
        """Send a Kafka request, wait for its response, return the response's body."""
        self.correlation_id += 1
        header = struct.pack(">hhi", api_key, version, self.correlation_id) + string("example")
        self._send(REQUEST, self.token, header, *frames)
        parts, more = [], True
        while more:
            kind, flags, body = self._receive()
            if kind == RESPONSE:
                parts.append(body)
                more = flags & MORE
        response = b"".join(parts)
        assert struct.unpack_from(">i", response)[0] == self.correlation_id
        return response[4:]

    def close(self):
        self._send(CLOSE, self.token)
        self.socket.close(linger=1000)

    def _send(self, kind, token, *frames):
        self.socket.send_multipart([struct.pack(">HBBI16s", 0x4B5A, 1, kind, 0, token), *frames])

    def _receive(self):
        """The next message; what it acknowledges is acknowledged at once, because it is consumed at once."""
        if not self.socket.poll(30_000):
            raise TimeoutError("the broker does not answer")
        head, *body = self.socket.recv_multipart()
        _, _, kind, flags, mark, _ = struct.unpack(">HBBIQQ", head)
        body = b"".join(body)
        if kind == ERROR:
            raise RuntimeError(f"error {struct.unpack_from('>H', body)[0]}: {body[4:].decode()}")
        if mark and kind == RESPONSE:
            self._send(CREDIT, self.token, struct.pack(">QQ", mark, WINDOW))
        return kind, flags, body

    @staticmethod
    def _dealer(context, endpoint):
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.immediate = 1
        socket.connect(endpoint)
        return socket

    def _ask_once(self, context, endpoint, kind, body):
        self.socket = self._dealer(context, endpoint)
        self._send(kind, bytes(16), body)
        answer = self._receive()[2]
        self.socket.close()
        return answer


# Kafka's formats, as short as they can be: Metadata v4, Produce v8, Fetch v4, record batches v2.


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(number):
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number >> 1 ^ -(number & 1), at


def encode_batch(values):
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    now = int(time.time() * 1000)
    tail = struct.pack(">hiqqqhii", 0, len(values) - 1, now, now, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c(tail)) + tail


def decode_batches(data):
    """Yield (offset, value) of whole batches that are not compressed."""
    at = 0
    while at + 61 <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        end = at + 12 + length
        if end > len(data):
            return
        (count,) = struct.unpack_from(">i", data, at + 57)
        at += 61
        for _ in range(count):
            size, at = read_varint(data, at)
            next_at = at + size
            _, at = read_varint(data, at + 1)
            delta, at = read_varint(data, at)
            key_length, at = read_varint(data, at)
            value_length, at = read_varint(data, at + max(key_length, 0))
            yield base + delta, bytes(data[at : at + max(value_length, 0)])
            at = next_at
        at = end


def create(session, topic):
    """Metadata creates the topic where the broker allows that."""
    session.ask(METADATA, 4, struct.pack(">i", 1) + string(topic) + b"\1")


def produce(session, topic, values):
    """Append to partition 0; return the first offset. The batch travels in a frame of its own, so it is not copied."""
    batch = encode_batch(values)
    head = struct.pack(">hhii", -1, -1, 30_000, 1) + string(topic) + struct.pack(">iii", 1, 0, len(batch))
    while True:
        answer = session.ask(PRODUCE, 8, head, batch)
        error, offset = struct.unpack_from(">hq", answer, 4 + 2 + len(topic) + 4 + 4)
        if not error:
            return offset
        if error not in RETRIABLE:
            raise RuntimeError(f"produce: Kafka's error {error}")
        time.sleep(0.1)


def fetch(session, topic, offset):
    """Return the records of partition 0 from `offset` on; wait up to a second for some."""
    head = struct.pack(">iiiibi", -1, 1000, 1, 8 << 20, 0, 1) + string(topic)
    answer = session.ask(FETCH, 4, head + struct.pack(">iiqi", 1, 0, offset, 8 << 20))
    at = 8 + 2 + len(topic) + 4
    error, _, _, aborted = struct.unpack_from(">hqqi", answer, at + 4)
    if error:
        raise RuntimeError(f"fetch: Kafka's error {error}")
    at += 4 + 22 + 16 * max(aborted, 0) + 4
    return [record for record in decode_batches(answer[at:]) if record[0] >= offset]


def main(endpoint, topic, *values):
    session = Session(zmq.Context(), endpoint)
    create(session, topic)
    if values:
        produce(session, topic, [value.encode() for value in values])
    offset = 0
    while records := fetch(session, topic, offset):
        for offset, value in records:
            print(offset, value.decode(), flush=True)
        offset += 1
    session.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
