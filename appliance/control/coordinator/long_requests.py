"""Requests of thousands of elements: decoded, planned and answered in pieces, in slices of time (decisions 0078, 0091).

    queue ─→ begin: copy the bytes ─→ decode ─→ a servant's steps ─→ answered, or handed to a group or to a log
                                    └────── a job of `Slices`: heartbeats and commits are served between its slices

A request that is half done is memory: its bytes, the elements decoded so far, and the answer. So few large requests are
worked on at a time, and others only up to a number of bytes; the rest waits in the queue, in the network processes'
pools.

When the connection closes, a request that only asks is dropped where it is. One that changes something is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from appliance.control.coordinator.pieces import Steps
from appliance.control.coordinator.request_lines import RequestLines
from appliance.control.coordinator.request_queue import LARGE_BYTES, TAKEN_FROM_THE_GONE, Received, Reply
from appliance.control.coordinator.slices import Slices
from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.headers import response_frame
from appliance.protocol.messages import decode_request_in_pieces, encode_response_body_in_pieces

LARGE_AT_ONCE: Final = 4
"""Requests of more than LARGE_BYTES under way; each may be some ten megabytes of elements."""
LONG_BYTES_MAX: Final = 1 << 20
"""Bytes of the other requests under way; with more, none is begun."""
LARGE_BYTES_MAX: Final = 16 << 20
"""Bytes of large requests under way; with more, no other one is begun."""

ServeRequest = Callable[[Any, Reply], Steps[None]]
ServeBytes = Callable[[bytes, Reply], Steps[None]]
Contain = Callable[[Reply, Exception], None]


class LongRequests:
    """Those of one coordinator.

    Args:
        serve: gives the steps that work on a decoded request. The last of them answers, or somebody does later.
        serve_bytes: the same, by API, for those that decode the bytes of the body themselves.
        contain: hears what the steps of a request raised, and answers it.
    """

    __slots__ = (
        "_bytes",
        "_contain",
        "_large",
        "_large_bytes",
        "_lines",
        "_monotonic_ns",
        "_serve",
        "_serve_bytes",
        "_slices",
    )

    def __init__(
        self,
        slices: Slices,
        lines: RequestLines,
        *,
        serve: ServeRequest,
        serve_bytes: dict[int, ServeBytes],
        contain: Contain,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._slices = slices
        self._lines = lines
        self._serve = serve
        self._serve_bytes = serve_bytes
        self._contain = contain
        self._monotonic_ns = monotonic_ns
        self._large = 0
        self._large_bytes = 0
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether one more that is not large may begin."""
        return self._bytes < LONG_BYTES_MAX

    @property
    def has_room_for_large(self) -> bool:
        return self._large < LARGE_AT_ONCE and self._large_bytes < LARGE_BYTES_MAX

    def begin(self, received: Received) -> None:
        """Work on a request that was taken from the queue, from the next slice on. Its bytes are copied."""
        reply = received.reply
        size_bytes = reply.length_bytes
        if size_bytes > LARGE_BYTES:
            self._large += 1
            self._large_bytes += size_bytes
        else:
            self._bytes += size_bytes
        steps = self._steps(bytes(received.body()), reply)
        self._slices.begin(_Job(reply, steps, self, size_bytes=size_bytes))

    def answer(self, reply: Reply, response: Any) -> Steps[None]:
        """Encode the response and send it."""
        header = reply.header
        body = yield from encode_response_body_in_pieces(header.api_key, header.version, response)
        header_version = ApiKey(header.api_key).response_header_version(header.version)
        self._lines.answer(reply, response_frame(header_version, header.correlation_id, body))

    def later(self, reply: Reply, steps: Steps[None]) -> None:
        """Work on steps that answer a request which was begun before."""
        self._slices.begin(_Job(reply, steps, self, size_bytes=0))

    def _steps(self, body: bytes, reply: Reply) -> Steps[None]:
        header = reply.header
        serve_bytes = self._serve_bytes.get(header.api_key)
        if serve_bytes is not None:
            yield from serve_bytes(body, reply)
            return
        request = yield from decode_request_in_pieces(
            header.api_key, header.version, memoryview(body), 0, len(body)
        )
        del body
        yield from self._serve(request, reply)

    def run(self, job: _Job, until_ns: int) -> bool:
        """Work on a job until that time; whether it is over."""
        monotonic_ns = self._monotonic_ns
        try:
            while True:
                next(job.steps)
                if monotonic_ns() >= until_ns:
                    return False
        except StopIteration:
            pass
        except MalformedFrame as fault:
            if not job.reply.answered:
                self._lines.refuse(job.reply, str(fault))
        except Exception as error:
            self._contain(job.reply, error)
        self._over(job)
        return True

    def drop(self, job: _Job) -> None:
        """Nobody waits for the answer."""
        job.steps.close()
        self._over(job)
        if not job.reply.answered:
            self._lines.drop(job.reply)

    def _over(self, job: _Job) -> None:
        job.is_over = True
        if job.size_bytes > LARGE_BYTES:
            self._large -= 1
            self._large_bytes -= job.size_bytes
        else:
            self._bytes -= job.size_bytes

    def statistics(self) -> dict[str, int]:
        return {"large": self._large, "large_bytes": self._large_bytes, "bytes": self._bytes}


class _Job:
    """A request under way, as a job of `Slices`."""

    __slots__ = ("_requests", "is_over", "reply", "size_bytes", "steps")

    def __init__(self, reply: Reply, steps: Steps[None], requests: LongRequests, *, size_bytes: int) -> None:
        self.reply = reply
        self.steps = steps
        self.size_bytes = size_bytes
        self.is_over = False
        self._requests = requests

    def run(self, until_ns: int) -> bool:
        return self.is_over or self._requests.run(self, until_ns)

    def closed(self, connection: int) -> None:
        if (
            connection == self.reply.key
            and not self.is_over
            and self.reply.header.api_key not in TAKEN_FROM_THE_GONE
        ):
            self._requests.drop(self)
