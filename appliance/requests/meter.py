"""What clients use of their quotas, and how long each must wait (KIP-13, KIP-124, KIP-219, KIP-599).

    request arrives ─→ `arrived`: bytes of a produce request ─→ served ─→ `served`: processor time
                                                                 │
    answer ─→ `fetch_delay_ms` (Fetch), `answered` (all others): how long? ─→ into the answer; the session is muted

An answer says how long its client is throttled, and leaves at once. For that time the transport takes no further
request of the session. A producer's session waits on if the budget is used up still, because sessions share it: else
all of them would send one request more at the same time. (Apache Kafka lets each go on after its own time.)

A quota is one budget of all network processes: they add up what they count in shared memory
(`ipc.rate_samples`). A rate is what was counted in the WINDOW_S seconds up to now, divided by their length, which is
10 to 11 seconds; the delay is what brings it down to the bound:

    delay = (counted - bound x length) / bound

For example: 1,000,000 bytes a second are allowed, and 10,700,000 were sent in the last 10.2 s. They are 500,000 more
than allowed, so the client waits half a second. A client that was silent may send ten seconds' bytes at once.

A fetch is cut to what the bound allows in 10 s. If it is over the quota it gets an empty answer, and its bytes do not
count. Where nothing else is counted in the window it is let through, however large its first batch is, because it would
be over the quota each time (Apache Kafka refuses it for ever).

`request_percentage` counts the time that this process works on the requests of a client; 100 is one processor. What
I/O workers and coordinators do for it is not counted. Its delay is at most one second.

There is a meter only while some user or client id has a quota. Without one, a request pays one look at an empty slot.

Source: Kafka's `ClientQuotaManager.scala`, `ClientRequestQuotaManager.scala`, `QuotaUtils.java`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from appliance.access.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    INT32_MAX,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaRules,
    user_of,
)
from appliance.channels.control_channel import MutatingClient
from appliance.clock import Clock
from appliance.cluster import ClientQuotas
from appliance.ipc.rate_samples import WINDOW_S, RateSamples, SampledRate, key_of
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.throttle_time import with_throttle_time
from appliance.requests.answer import Piece
from appliance.requests.session import Request, Session

CLIENTS_MAX: Final = 10_000
"""Remembered clients; with the next one all are forgotten. A client chooses its client id."""
REQUEST_DELAY_MS_MAX: Final = 1_000

_NS_PER_S: Final = 1_000_000_000
_NS_PER_PERCENT: Final = _NS_PER_S // 100
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_EXEMPT: Final = frozenset({int(ApiKey.WRITE_TXN_MARKERS)})
"""Not throttled by their processor time, as in Kafka."""

Mute = Callable[[Session, int], None]
"""Takes no request of the session for so many milliseconds."""


class _Limit:
    """One budget of a client: `bound` units in a second."""

    __slots__ = ("bound", "rate")

    def __init__(self, bound: float, rate: SampledRate) -> None:
        self.bound = bound
        self.rate = rate

    def delay_ms(self, now_ns: int, more: int = 0) -> int:
        """Return how long the client must wait if it uses so many units more; 0 if it need not."""
        now_s, rest_ns = divmod(now_ns, _NS_PER_S)
        length_s = WINDOW_S - 1 + rest_ns / _NS_PER_S
        over = self.rate.total(now_s) + more - self.bound * length_s
        return min(round(over / self.bound * 1_000), INT32_MAX) if over > 0 else 0

    def add(self, amount: int, now_ns: int) -> None:
        self.rate.add(amount, now_ns // _NS_PER_S)


class _Client:
    """What limits the sessions of one user and client id."""

    __slots__ = ("fetch", "produce", "request")

    def __init__(self, produce: _Limit | None, fetch: _Limit | None, request: _Limit | None) -> None:
        self.produce = produce
        self.fetch = fetch
        self.request = request


class Meter:
    """The quotas of one network process.

    Args:
        samples: what all network processes count.
        secret: of the keyed hash by which budgets are known; the same in all network processes.
        mute: called when a client is throttled.
    """

    def __init__(self, samples: RateSamples, *, secret: bytes, clock: Clock, mute: Mute) -> None:
        self._samples = samples
        self._secret = secret
        self._clock = clock
        self._mute = mute
        self._clients: dict[tuple[str, str], _Client] = {}
        self._mutation_delays_ms: dict[Session, int] = {}
        self.throttled = self.throttled_ms = 0
        self.set_quotas(())

    def set_quotas(self, quotas: Sequence[ClientQuotas]) -> None:
        """Go by these quotas from now on. What was counted stays."""
        self._produce = QuotaRules(PRODUCER_BYTE_RATE, quotas)
        self._fetch = QuotaRules(CONSUMER_BYTE_RATE, quotas)
        self._request = QuotaRules(REQUEST_PERCENTAGE, quotas)
        self._mutation = QuotaRules(CONTROLLER_MUTATION_RATE, quotas)
        self._clients.clear()

    def arrived(self, session: Session, api_key: int, size_bytes: int) -> None:
        """A request is about to be served. Its client id is the session's by now."""
        if api_key == _PRODUCE:
            limit = self._client(session).produce
            if limit is not None:
                now_ns = self._clock.monotonic_ns()
                limit.add(size_bytes, now_ns)
                # Not only with the answer: the client may have sent more behind it.
                if delay_ms := limit.delay_ms(now_ns):
                    self._mute(session, delay_ms)

    def remaining_ms(self, session: Session) -> int:
        """Return how much longer a throttled session waits, because others have used the budget meanwhile."""
        limit = self._client(session).produce
        return 0 if limit is None else limit.delay_ms(self._clock.monotonic_ns())

    def served(self, session: Session, duration_ns: int) -> None:
        """This process has worked on a request of the session for so long."""
        limit = self._client(session).request
        if limit is not None and duration_ns > 0:
            limit.add(duration_ns, self._clock.monotonic_ns())

    def fetch_max_bytes(self, session: Session) -> int:
        """Return how much one fetch may get; 0 where nothing limits it."""
        limit = self._client(session).fetch
        return 0 if limit is None else max(1, int(min(limit.bound * (WINDOW_S - 1), INT32_MAX)))

    def fetch_delay_ms(self, session: Session, size_bytes: int) -> int:
        """Return 0 where a fetch may have its answer, which counts then. Else the client is throttled for so long."""
        client = self._client(session)
        now_ns = self._clock.monotonic_ns()
        delay_ms = 0 if client.request is None else self._request_delay_ms(client.request, now_ns)
        limit = client.fetch
        if limit is not None:
            bytes_delay_ms = limit.delay_ms(now_ns, size_bytes)
            if bytes_delay_ms and not limit.rate.total(now_ns // _NS_PER_S):
                bytes_delay_ms = 0
            delay_ms = max(delay_ms, bytes_delay_ms)
            if not delay_ms:
                limit.add(size_bytes, now_ns)
        if delay_ms:
            self._throttle(session, delay_ms)
        return delay_ms

    def answered(self, pending: Request, answer: list[Piece]) -> None:
        """An answer is about to leave: write into it how long its client is throttled."""
        key, session = pending.api_key, pending.session
        if key == _FETCH:  # `fetch_delay_ms` has decided already
            return
        client = self._client(session)
        now_ns = self._clock.monotonic_ns()
        delay_ms = 0
        # The request quota does not count for acks=0, which has no answer.
        if answer and client.request is not None and key not in _EXEMPT:
            delay_ms = self._request_delay_ms(client.request, now_ns)
        if key == _PRODUCE and client.produce is not None:
            delay_ms = max(delay_ms, client.produce.delay_ms(now_ns))
        if self._mutation_delays_ms:
            delay_ms = max(delay_ms, self._mutation_delays_ms.pop(session, 0))
        if not delay_ms:
            return
        if answer:
            frame, *rest = answer
            assert isinstance(frame, bytes)
            frame = with_throttle_time(frame, key, pending.version, delay_ms, is_whole=not rest)
            answer[:] = [frame, *rest]
        self._throttle(session, delay_ms)

    def mutating_client(self, session: Session, *, is_strict: bool) -> MutatingClient | None:
        """Return for whom the controller counts partitions; None where nothing limits them."""
        user, client_id = user_of(session.principal), session.client_id or ""
        if self._mutation.budget(user, client_id) is None:
            return None
        return MutatingClient(user, client_id, is_strict)

    def mutated(self, session: Session, delay_ms: int) -> None:
        """The controller throttles the request of the session that is being served."""
        self._mutation_delays_ms[session] = max(delay_ms, self._mutation_delays_ms.get(session, 0))

    def ended(self, session: Session) -> None:
        """A session has ended."""
        self._mutation_delays_ms.pop(session, None)

    def _throttle(self, session: Session, delay_ms: int) -> None:
        self.throttled += 1
        self.throttled_ms += delay_ms
        self._mute(session, delay_ms)

    @staticmethod
    def _request_delay_ms(limit: _Limit, now_ns: int) -> int:
        return min(limit.delay_ms(now_ns), REQUEST_DELAY_MS_MAX)

    def _client(self, session: Session) -> _Client:
        name = (session.principal, session.client_id or "")
        client = self._clients.get(name)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                self._clients.clear()
            user, client_id = user_of(session.principal), name[1]
            client = self._clients[name] = _Client(
                self._limit(self._produce, user, client_id),
                self._limit(self._fetch, user, client_id),
                self._limit(self._request, user, client_id, unit=_NS_PER_PERCENT),
            )
        return client

    def _limit(self, rules: QuotaRules, user: str, client_id: str, *, unit: int = 1) -> _Limit | None:
        budget = rules.budget(user, client_id)
        if budget is None:
            return None
        from hashlib import blake2b  # which loads all of OpenSSL

        hashed = blake2b(key=self._secret, digest_size=16)
        for part in (rules.key, budget.user, budget.client_id):
            text = part.encode()
            hashed.update(len(text).to_bytes(4, "big") + text)
        return _Limit(budget.bound * unit, self._samples.sampled(key_of(hashed.digest())))

    def statistics(self) -> dict[str, int]:
        """Clients that are known, answers that throttled, budgets that were lost for want of room."""
        return {
            "clients": len(self._clients),
            "throttled": self.throttled,
            "throttled_ms": self.throttled_ms,
            "evicted": self._samples.evicted,
        }
