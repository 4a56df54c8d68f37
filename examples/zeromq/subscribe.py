"""Print the records of partition 0 as they are committed, with pyzmq and nothing else.

    python subscribe.py ipc:///run/appliance/zeromq TOPIC COUNT

It ends after COUNT records.
"""

import struct
import sys

import zmq
from produce_and_fetch import (
    CREDIT,
    HEARTBEAT,
    MORE,
    RETRIABLE,
    WINDOW,
    Session,
    create,
    decode_batches,
    string,
)

SUBSCRIBE, PUSH = 16, 18
NUMBER = 1
HEARTBEAT_MS = 2000


def messages(session):
    """Yield (kind, flags, body); send heartbeats meanwhile, and acknowledge what the caller has consumed."""
    heartbeat_mark = 0
    while True:
        if not session.socket.poll(HEARTBEAT_MS):
            session._send(HEARTBEAT, session.token, struct.pack(">Q", heartbeat_mark))
            continue
        head, *body = session.socket.recv_multipart()
        _, _, kind, flags, mark, _ = struct.unpack(">HBBIQQ", head)
        yield kind, flags, b"".join(body)
        if kind == HEARTBEAT:
            heartbeat_mark = mark
        elif mark:
            session._send(CREDIT, session.token, struct.pack(">QQ", mark, WINDOW))


def subscribe(session, topic, offset):
    body = struct.pack(">QiqBI", NUMBER, 0, offset, 0, 1 << 20) + string(topic)
    session._send(SUBSCRIBE, session.token, body)


def main(endpoint, topic, count):
    session = Session(zmq.Context(), endpoint)
    create(session, topic)
    subscribe(session, topic, 0)
    left, offset, push = int(count), 0, b""
    for kind, flags, body in messages(session):
        if kind != PUSH:
            continue
        push += body
        if flags & MORE:
            continue
        at = 12 + 2 + len(topic) + 8
        error, _, _, aborted = struct.unpack_from(">hqqi", push, at)
        if error in RETRIABLE:  # the topic is new and nobody leads it yet
            subscribe(session, topic, offset)
        elif error:
            raise RuntimeError(f"push: Kafka's error {error}")
        for each, value in decode_batches(push[at + 22 + 16 * max(aborted, 0) + 4 :]):
            if each >= offset and left:
                print(each, value.decode(), flush=True)
                offset, left = each + 1, left - 1
        push = b""
        if not left:
            session.close()
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
