"""A line between a client and a server that can be cut at a chosen moment: TCP, byte for byte, one thread."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import Final

_READ_BYTES: Final = 65536


class CutLine:
    """Listens on a loopback port and connects each client with the server on `port`.

    `cut_after_answer` lets a request through, keeps the answer to itself and cuts; `cut_before_request` cuts
    instead of letting the request through. Both cut once; `then_refuse` closes every new connection until `mend`.
    `silence` passes nothing on, and keeps it, until `mend`.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._peer: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._keeps_answers = False
        self._keeps_requests = False
        self._refuses_after = False
        self._refuses = False
        self._is_silent = False
        self._stands_still = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def cut_after_answer(self, *, then_refuse: bool = False) -> None:
        self._refuses_after = then_refuse
        self._keeps_answers = True

    def cut_before_request(self, *, then_refuse: bool = False) -> None:
        self._refuses_after = then_refuse
        self._keeps_requests = True

    def silence(self) -> None:
        self._is_silent = True
        assert self._stands_still.wait(30)

    def mend(self) -> None:
        self._refuses = False
        self._is_silent = False
        self._stands_still.clear()

    def close(self) -> None:
        self._stopped = True
        self._thread.join(30)
        self._cut()
        self._listener.close()
        self._selector.close()

    def _carry(self) -> None:
        while not self._stopped:
            if self._is_silent:
                self._stands_still.set()
                time.sleep(0.02)
                continue
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._peer:
                    self._pass_on(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._refuses:
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port), timeout=30)
        except OSError:
            client.close()
            return
        self._clients.add(client)
        for one, other in ((client, server), (server, client)):
            self._peer[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            data = source.recv(_READ_BYTES)
        is_request = source in self._clients
        if not data:
            self._end(source)
            return
        if (self._keeps_requests and is_request) or (self._keeps_answers and not is_request):
            self._keeps_answers = self._keeps_requests = False
            self._refuses = self._refuses_after
            self._cut()
            return
        with suppress(OSError):
            self._peer[source].sendall(data)

    def _end(self, one: socket.socket) -> None:
        """One of two ends is closed: so is the other."""
        for each in (one, self._peer[one]):
            self._selector.unregister(each)
            each.close()
            del self._peer[each]
            self._clients.discard(each)

    def _cut(self) -> None:
        for one in self._peer:
            self._selector.unregister(one)
            one.close()
        self._peer.clear()
        self._clients.clear()
