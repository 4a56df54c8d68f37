"""What a megabyte of a file costs sender and receiver over the loopback device: sendfile beside copies.

python -m benchmarks.micro.local_send [MIB]      a file of that many MiB (512), read once before
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Final

MIB: Final = 1 << 20
ROUNDS: Final = 3

Send = Callable[[socket.socket, int, int], None]
"""Sends the megabyte at a position of the file behind a descriptor."""


def by_sendfile(sock: socket.socket, fd: int, position: int) -> None:
    end = position + MIB
    while position < end:
        position += os.sendfile(sock.fileno(), fd, position, end - position)


def by_copies_of(size_bytes: int) -> Send:
    buffer = bytearray(size_bytes)

    def send(sock: socket.socket, fd: int, position: int) -> None:
        for at in range(position, position + MIB, size_bytes):
            os.preadv(fd, [buffer], at)
            sock.sendall(buffer)

    return send


def by_mapping(fd: int) -> Send:
    view = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))

    def send(sock: socket.socket, _fd: int, position: int) -> None:
        sock.sendall(view[position : position + MIB])

    return send


def measure(name: str, send: Send, fd: int, count: int) -> None:
    """Prints a line: MB/s, and processor seconds per GB of both ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        told, tell = os.pipe()
        receiver = os.fork()
        if not receiver:
            _receive(listening.getsockname(), tell)
        sock, _ = listening.accept()
    with sock:
        before, began = time.process_time(), time.perf_counter()
        for number in range(count):
            send(sock, fd, number * MIB)
        sock.shutdown(socket.SHUT_WR)
        received_s = float(os.read(told, 64))
        took_s, sent_s = time.perf_counter() - began, time.process_time() - before
    os.waitpid(receiver, 0)
    os.close(told)
    os.close(tell)
    gb = count * MIB / 1e9
    print(
        f"{name:22} {gb * 1e3 / took_s:6.0f} MB/s   sender {sent_s / gb:.2f}   receiver {received_s / gb:.2f} s/GB"
    )


def _receive(address: tuple[str, int], tell: int) -> None:
    buffer = bytearray(MIB)
    before = time.process_time()
    with socket.create_connection(address) as sock:
        while sock.recv_into(buffer):
            pass
    os.write(tell, str(time.process_time() - before).encode())
    os._exit(0)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    with tempfile.TemporaryFile() as file:
        for _ in range(count):
            file.write(os.urandom(MIB))
        file.flush()
        fd = file.fileno()
        ways: dict[str, Send] = {
            "sendfile": by_sendfile,
            "mapped, send": by_mapping(fd),
            "preadv 1 MiB, send": by_copies_of(MIB),
            "preadv 256 KiB, send": by_copies_of(MIB // 4),
            "preadv 64 KiB, send": by_copies_of(MIB // 16),
        }
        for _ in range(ROUNDS):
            for name, send in ways.items():
                measure(name, send, fd, count)


if __name__ == "__main__":
    main()
