"""What a network process records: it makes lines, and hands them to the writer of the journal.

    entry ─→ line ─→ queue ─── FLUSH_MS later, in one message ─→ the writer (`control/auditor`)
                       │ QUEUE_BYTES_MAX are there, because the writer does not read: counted, and dropped
                       ↓
                     `lost`, with the count, as soon as the writer reads again

A request never waits for the journal: an entry costs the time to make a line. Nothing here does I/O but `send`, which
does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from appliance.audit.entry import (
    AUTHENTICATION,
    CHANGE,
    DENIED,
    DONE,
    FAILED,
    LOST,
    REFUSAL,
    REPEATS,
    RESOURCES_MAX,
    UNKNOWN,
    Entry,
    Resource,
    cut,
    line,
    time_text,
)
from appliance.audit.repeats import INTERVAL_NS, Repeats
from appliance.clock import Clock
from appliance.config.sections.audit import AUTHENTICATIONS, CHANGES, REFUSALS, AuditSettings

FLUSH_MS: Final = 20
RETRY_MS: Final = 500
QUEUE_BYTES_MAX: Final = 2 << 20
MESSAGE_BYTES_MAX: Final = 256 << 10
NS_PER_SECOND: Final = 1_000_000_000


class Client(Protocol):
    """Who sends a request: a session."""

    principal: str
    host: str
    peer_port: int
    listener: str
    client_id: str | None
    connection_id: int


class Recorder:
    """The entries of one process.

    Args:
        process: the process, as entries name it.
        after_ms: calls an action later (`AgentProcess.after_ms`).
        send: hands lines to the writer without waiting; False where it takes none now.
    """

    __slots__ = (
        "_after_ms",
        "_before_flush",
        "_clock",
        "_is_armed",
        "_lost",
        "_process",
        "_queue",
        "_queue_bytes",
        "_repeats",
        "_send",
        "_sweeps",
        "lost",
        "records_authentications",
        "records_changes",
        "records_refusals",
    )

    def __init__(
        self,
        settings: AuditSettings,
        clock: Clock,
        *,
        process: str,
        after_ms: Callable[[int, Callable[[], None]], object],
        send: Callable[[bytes], bool],
    ) -> None:
        self._clock = clock
        self._process = process
        self._after_ms = after_ms
        self._send = send
        self._repeats = Repeats(settings.repeats_max)
        self._queue: list[bytes] = []
        self._queue_bytes = 0
        self._lost = 0
        self._is_armed = False
        self._sweeps = False
        self._before_flush: Callable[[], None] | None = None
        self.lost = 0
        self.records_authentications = AUTHENTICATIONS in settings.events
        self.records_refusals = REFUSALS in settings.events
        self.records_changes = CHANGES in settings.events

    # What happened

    def authentication(
        self,
        *,
        principal: str,
        host: str,
        port: int,
        listener: str,
        mechanism: str,
        connection: int = 0,
        error: str | None = None,
    ) -> None:
        """Record that a client has proved who it is, or has not.

        Every way to authenticate calls this once for each connection, and again when a connection authenticates again.

        Args:
            principal: the client's, as `User:alice`; "" where nothing is known. Of a failed attempt: the principal that
                the client claims to be.
            mechanism: `SSL`, `SCRAM-SHA-512`, `CURVE`, …
            error: why it failed, without any secret; None where it has not.
        """
        if not self.records_authentications:
            return
        # A client whose attempt fails can claim any name, but it has one address.
        if not self._may_record(AUTHENTICATION, principal if error is None else f"{host} (failed)"):
            return
        self._put(
            Entry(
                time_text(self._clock.now_ms()),
                AUTHENTICATION,
                DONE if error is None else DENIED,
                principal=cut(principal),
                host=host,
                port=port,
                listener=listener,
                connection=connection,
                mechanism=mechanism,
                reason=cut(error or ""),
                process=self._process,
            )
        )

    def refusal(
        self, client: Client, *, api: str, version: int, resources: Sequence[Resource], count: int
    ) -> None:
        """Record what a rule kept a request from: RESOURCES_MAX resources at most, of `count`."""
        if self.records_refusals and self._may_record(REFUSAL, client.principal):
            entry = self._of_request(client, REFUSAL, DENIED, api=api, version=version, resources=resources)
            self._put(replace(entry, count=count) if count > len(resources) else entry)

    def change(
        self,
        client: Client,
        *,
        api: str,
        version: int,
        resources: Sequence[Resource],
        is_daily: bool = False,
    ) -> Iterator[None]:
        """Record what became of a request for changes; yields between entries, because there may be many.

        A request of which nothing was allowed has changed nothing: its entry is the refusal. `is_daily`: clients send
        such requests without an administrator's rights, so they are bounded as refusals are.
        """
        if not self.records_changes or all(each.result == DENIED for each in resources):
            return
        for first in range(0, len(resources), RESOURCES_MAX):
            if is_daily and not self._may_record(CHANGE, client.principal):
                continue
            part = resources[first : first + RESOURCES_MAX]
            results = {each.result for each in part}
            result = next((each for each in (UNKNOWN, FAILED, DENIED) if each in results), DONE)
            self._put(self._of_request(client, CHANGE, result, api=api, version=version, resources=part))
            yield

    def _of_request(
        self,
        client: Client,
        event: str,
        result: str,
        *,
        api: str,
        version: int,
        resources: Sequence[Resource],
    ) -> Entry:
        return Entry(
            time_text(self._clock.now_ms()),
            event,
            result,
            principal=cut(client.principal),
            host=client.host,
            port=client.peer_port,
            listener=client.listener,
            client=cut(client.client_id or ""),
            connection=client.connection_id,
            api=api,
            version=version,
            resources=tuple(resources[:RESOURCES_MAX]),
            process=self._process,
        )

    # Repeats

    def _may_record(self, event: str, principal: str) -> bool:
        self._tell_repeats()
        may = self._repeats.may_record(event, principal, self._clock.monotonic_ns())
        if not self._sweeps:
            self._sweeps = True
            self._after_ms(INTERVAL_NS // 1_000_000 + 1, self._sweep)
        return may

    def _sweep(self) -> None:
        self._sweeps = False
        self._tell_repeats()
        if self._repeats:
            self._sweeps = True
            self._after_ms(INTERVAL_NS // 1_000_000 + 1, self._sweep)

    def _tell_repeats(self, *, all_of_them: bool = False) -> None:
        repeats = self._repeats
        over = repeats.rest() if all_of_them else repeats.over(self._clock.monotonic_ns())
        for left_out in over:
            self._put(
                Entry(
                    time_text(self._clock.now_ms()),
                    REPEATS,
                    principal=cut(left_out.principal),
                    of=left_out.event,
                    count=left_out.entries,
                    seconds=INTERVAL_NS // NS_PER_SECOND,
                    process=self._process,
                )
            )

    # The way to the writer

    def before_flush(self, action: Callable[[], None]) -> None:
        """Call `action` before lines are sent; what it records is sent with them."""
        self._before_flush = action

    def arm(self) -> None:
        """Send within FLUSH_MS what there is by then."""
        if not self._is_armed:
            self._is_armed = True
            self._after_ms(FLUSH_MS, self._due)

    def _put(self, entry: Entry) -> None:
        written = line(entry)
        if self._queue_bytes + len(written) > QUEUE_BYTES_MAX:
            self._lost += 1
            self.lost += 1
        else:
            self._queue.append(written)
            self._queue_bytes += len(written)
        self.arm()

    def _due(self) -> None:
        self._is_armed = False
        self.flush()

    def flush(self) -> bool:
        """Hand everything to the writer; return whether it took it. What it did not take is tried again later."""
        if self._before_flush is not None:
            self._before_flush()
        queue = self._queue
        while queue:
            count = size_bytes = 0
            while count < len(queue) and (not count or size_bytes + len(queue[count]) <= MESSAGE_BYTES_MAX):
                size_bytes += len(queue[count])
                count += 1
            if not self._send(b"".join(queue[:count])):
                self._retry()
                return False
            del queue[:count]
            self._queue_bytes -= size_bytes
        if self._lost:
            told = Entry(time_text(self._clock.now_ms()), LOST, count=self._lost, process=self._process)
            if not self._send(line(told)):
                self._retry()
                return False
            self._lost = 0
        return True

    def close(self) -> None:
        """Hand over what is left, because the process stops."""
        self._tell_repeats(all_of_them=True)
        self.flush()

    def _retry(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._after_ms(RETRY_MS, self._due)

    def statistics(self) -> dict[str, int]:
        return {
            "queued": len(self._queue),
            "queued_bytes": self._queue_bytes,
            "lost": self.lost,
            "principals": len(self._repeats),
        }
