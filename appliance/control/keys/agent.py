"""The duty cycle of the key process: fetch when it is time, check what came, publish what can be used.

Does: asks one URL, or reads one file, in a thread; publishes the public keys for network processes
(`channels/key_channel.py`). Never: stops because of what an endpoint answers or does not answer; sees a token or a
client; writes to a disk. Dies: the last keys stay published, and the next life fetches at its start.

The thread does nothing but wait for the network, and the process does not wait for the thread: it ends without it.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from appliance.channels.key_channel import PublishedKeys, publish
from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS
from appliance.control.keys.schedule import RefreshSchedule
from appliance.errors import HostFault
from appliance.process.agent import AgentProcess
from appliance.sasl.key_set import KeySet, read_key_set

if TYPE_CHECKING:
    from appliance.control.keys.endpoint import Fetch

FETCH_MS: Final = 10_000
"""How long one fetch may take."""
FILE_LOOK_MS: Final = 5_000
"""How often a file is read, because reading it costs nobody anything. A URL has an option for it."""
REPEAT_MS: Final = 600_000
"""How often the same reason of failures is written to the log."""

_LISTED_MAX: Final = 5

_logger = logging.getLogger(__name__)


class KeyAgent:
    """The loop and its state; `run` returns when the supervisor sends Stop, or is gone."""

    def __init__(self, process: AgentProcess) -> None:
        settings = process.settings.oauthbearer
        self._process = process
        self._clock = process.clock
        self._settings = settings
        self._bell = process.attachment.doorbell
        refresh_ms = settings.jwks_refresh_ms
        self._schedule = RefreshSchedule(
            refresh_ms=refresh_ms if settings.file is None else min(refresh_ms, FILE_LOOK_MS),
            backoff_ms=settings.jwks_retry_backoff_ms,
            backoff_max_ms=settings.jwks_retry_backoff_max_ms,
            now_ns=self._clock.monotonic_ns(),
        )
        self._fetch: Fetch | None = None
        self._result: bytes | HostFault | None = None
        self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        process.cycle.epoll.register(self._done, select.EPOLLIN)
        # Those of an earlier life of this process, if there was one.
        self._keys: KeySet | None = PublishedKeys(process.wiring.runtime_dir, self._bell.eventfd).current()
        self._fetches = self._failed_fetches = self._asked = 0
        self._reason = ""
        self._repeat_ns = 0
        self._running = True

    def run(self) -> None:
        """Work until Stop."""
        process = self._process
        process.publish_counters(self.counters)
        process.ready()
        while self._running:
            for descriptor, _ in process.cycle.wait(self._timeout_ms()):
                if descriptor == process.supervision_fd:
                    process.hear(self)
            self._turn()
        process.stopping()
        process.close()

    def counters(self) -> Mapping[str, int]:
        """Keys that are published, and what this life has done for them."""
        return {
            "keys": len(self._keys.keys) if self._keys is not None else 0,
            "fetches": self._fetches,
            "failed_fetches": self._failed_fetches,
            "unknown_keys": self._asked,
        }

    def _timeout_ms(self) -> int | None:
        if self._fetch is not None:
            return None
        # A week at a time: epoll takes no longer time.
        return min(max(0, -(-(self._schedule.due_ns - self._clock.monotonic_ns()) // NS_PER_MS)), 604_800_000)

    def _turn(self) -> None:
        asked = self._bell.drain()
        if asked:
            self._asked += asked
            self._schedule.asked(self._clock.monotonic_ns())
        # The thread sets the result first, so a turn for another reason may find it before this word of it.
        with suppress(BlockingIOError):
            os.eventfd_read(self._done)
        if self._result is not None:
            self._finish(self._result)
        if self._running and self._fetch is None and self._clock.monotonic_ns() >= self._schedule.due_ns:
            self._begin()

    # A fetch

    def _begin(self) -> None:
        # Imported where it is used: no other process needs TLS as a client.
        from appliance.control.keys.endpoint import Fetch

        fetch = Fetch(self._settings)
        self._schedule.began(self._clock.monotonic_ns())
        self._fetch = fetch
        self._process.after_ms(FETCH_MS, lambda: self._abort(fetch))
        threading.Thread(target=self._fetch_in_thread, args=(fetch,), daemon=True).start()

    def _fetch_in_thread(self, fetch: Fetch) -> None:
        try:
            self._result = fetch.run()
        except HostFault as fault:
            self._result = fault
        except Exception as error:
            self._result = HostFault(f"internal error: {error!r}")
        os.eventfd_write(self._done, 1)

    def _abort(self, fetch: Fetch) -> None:
        if self._fetch is fetch:
            fetch.abort()
            # It may be connecting still, and connect a moment later.
            self._process.after_ms(FETCH_MS, lambda: self._abort(fetch))

    def _finish(self, result: bytes | HostFault) -> None:
        self._fetch = self._result = None
        self._fetches += 1
        try:
            if isinstance(result, HostFault):
                raise result
            keys = read_key_set(result)
            if self._keys is None or keys.document() != self._keys.document():
                publish(self._process.wiring.runtime_dir, keys)
        except HostFault as fault:
            self._failed(str(fault))
        else:
            self._succeeded(keys)

    def _succeeded(self, keys: KeySet) -> None:
        before, self._keys = self._keys, keys
        failures = self._schedule.failures
        self._schedule.succeeded(self._clock.monotonic_ns())
        self._reason = ""
        url = self._settings.jwks_url
        if before is None or before.document() != keys.document():
            self._process.warn(
                f"{len(keys.keys)} keys of the identity provider are in use: {_listed(keys)} ({url})"
            )
        elif failures:
            self._process.warn(
                f"the keys of the identity provider were fetched again after {failures} failures ({url})"
            )
        if before is None or before.complaints != keys.complaints:
            for complaint in keys.complaints[:_LISTED_MAX]:
                self._process.warn(f"{url}: {complaint}; it is not used")

    def _failed(self, reason: str) -> None:
        self._failed_fetches += 1
        now_ns = self._clock.monotonic_ns()
        pause_ms = self._schedule.failed(now_ns)
        if reason == self._reason and now_ns < self._repeat_ns:
            return
        self._reason, self._repeat_ns = reason, now_ns + REPEAT_MS * NS_PER_MS
        effect = "the last keys stay in use"
        if self._keys is None:
            effect = "until then no client can log in with OAUTHBEARER"
        self._process.warn(
            f"cannot get the keys of the identity provider from {self._settings.jwks_url}: {reason}; {effect}; next"
            f" attempt in {pause_ms} ms"
        )

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End at once; a fetch under way ends with the process."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Nothing: no ring runs to this process."""

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Nothing: a network process that died asks no more."""


def _listed(keys: KeySet) -> str:
    names = [repr(key.key_id[:50]) if key.key_id is not None else "one without an id" for key in keys.keys]
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return ", ".join(names[:_LISTED_MAX]) + more
