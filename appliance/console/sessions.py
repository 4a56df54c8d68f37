"""Who has logged in: tokens in cookies, and what each session may use. Without I/O; time is handed in.

    login ──→ session ──→ each request moves it to the end of the queue
                 │
                 └──→ ends by a logout, by IDLE without a request, by LIFE, or because it gives way to one more

A token is 256 random bits, so nobody guesses one. The table holds only digests of tokens, so looking one up takes the
same time whatever a stranger sends. `csrf` is another secret: a form sends it back, and no other web page can know it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Final

from appliance.clock import NS_PER_MS
from appliance.console.kafka_link import Credentials, Link

TOKEN_BYTES: Final = 32
LIFE_MS: Final = 12 * 3_600_000
"""After that a person logs in again, however active the session was."""
NOTICES_MAX: Final = 8


class Session:
    """One login.

    Args:
        link: the connections with the person's rights.
        credentials: None where the broker does not authenticate.
    """

    __slots__ = ("_notices", "cache", "credentials", "csrf", "link", "until_ns", "used_ns")

    def __init__(self, link: Link, credentials: Credentials | None, *, now_ns: int) -> None:
        self.link = link
        self.credentials = credentials
        self.csrf = secrets.token_urlsafe(TOKEN_BYTES)
        self.used_ns = now_ns
        self.until_ns = now_ns + LIFE_MS * NS_PER_MS
        self.cache: dict[str, tuple[Any, Any]] = {}
        """Name → (version of the metadata image, answer): what the broker has said this user may see."""
        self._notices: list[tuple[str, str]] = []

    @property
    def user(self) -> str:
        """The name to show; empty where the broker does not authenticate."""
        return "" if self.credentials is None else self.credentials.user

    def is_right(self, csrf: str) -> bool:
        """Return whether a form came from a page of this session."""
        return hmac.compare_digest(csrf.encode("utf-8", "replace"), self.csrf.encode())

    def notify(self, kind: str, text: str) -> None:
        """Show a line on the next page. `kind` is "done" or "failed"."""
        self._notices = [*self._notices, (kind, text)][-NOTICES_MAX:]

    def take_notices(self) -> list[tuple[str, str]]:
        """Return the lines to show, and forget them."""
        found, self._notices = self._notices, []
        return found

    def cached(self, name: str, version: object, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for this version, and call it for another one."""
        held = self.cache.get(name)
        if held is not None and held[0] == version:
            return held[1]
        value = make()
        self.cache[name] = (version, value)
        return value


class Sessions:
    """All sessions. Threads share it.

    Args:
        sessions_max: one more ends a session of the user who has the most, so nobody can push out all others; of these
            the one that was used the longest time ago.
        idle_ms: without a request for so long, a session ends.
    """

    def __init__(self, *, sessions_max: int, idle_ms: int) -> None:
        self._max = sessions_max
        self._idle_ns = idle_ms * NS_PER_MS
        self._lock = threading.Lock()
        self._by_digest: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_digest)

    def add(self, session: Session) -> str:
        """Return the token of a new session."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        ended: list[Session] = []
        with self._lock:
            while len(self._by_digest) >= self._max:
                ended.append(self._by_digest.pop(self._next_to_end(session.user)))
            self._by_digest[_digest(token)] = session
        for each in ended:
            each.link.close()
        return token

    def _next_to_end(self, newcomer: str) -> bytes:
        """Return the digest of the session that gives way to one of `newcomer`."""
        counts = Counter(each.user for each in self._by_digest.values())
        counts[newcomer] += 1
        most = max(counts[each.user] for each in self._by_digest.values())
        return next(digest for digest, each in self._by_digest.items() if counts[each.user] == most)

    def find(self, token: str, *, now_ns: int) -> Session | None:
        """Return the session of a token, and count this as a use of it."""
        digest = _digest(token)
        with self._lock:
            session = self._by_digest.get(digest)
            if session is None or self._has_ended(session, now_ns):
                return None
            session.used_ns = now_ns
            self._by_digest.move_to_end(digest)
            return session

    def is_open(self, session: Session, *, now_ns: int) -> bool:
        """Return whether a session still counts; this is no use of it."""
        with self._lock:
            return not self._has_ended(session, now_ns) and any(
                each is session for each in self._by_digest.values()
            )

    def end(self, token: str) -> None:
        """End the session of a token, if there is one."""
        with self._lock:
            session = self._by_digest.pop(_digest(token), None)
        if session is not None:
            session.link.close()

    def expire(self, now_ns: int) -> None:
        """End the sessions whose time is over."""
        with self._lock:
            over = [digest for digest, each in self._by_digest.items() if self._has_ended(each, now_ns)]
            ended = [self._by_digest.pop(digest) for digest in over]
        for each in ended:
            each.link.close()

    def close(self) -> None:
        """End all."""
        with self._lock:
            ended = list(self._by_digest.values())
            self._by_digest.clear()
        for each in ended:
            each.link.close()

    def _has_ended(self, session: Session, now_ns: int) -> bool:
        return now_ns >= session.until_ns or now_ns - session.used_ns >= self._idle_ns


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
