"""Requests to pages: which person sends them, whether they came from a page of this console, which handler answers.

request ─→ asset? ─→ from another site? 403 ─→ session? else the login ─→ POST without its secret? 403 ─→ handler
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from appliance.clock import Clock
from appliance.config import Settings
from appliance.console.history import History
from appliance.console.kafka_link import BrokerAddress, BrokerFault, Credentials, Link, LoginRefused
from appliance.console.observation import Look, Observer
from appliance.console.own_log import OwnLog
from appliance.console.pages.overview import event
from appliance.console.rendering import Renderer
from appliance.console.routes import ROUTES
from appliance.console.server import Request, Response
from appliance.console.sessions import Session, Sessions
from appliance.console.visit import BadInput, Handler, NotThere, Shared, Streams, Visit
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.schemas.decoder import Decoder
from appliance.views.topic_access import NotShown

LOGINS_AT_ONCE: Final = 4
LOGIN_WAIT_S: Final = 5.0
"""For one of LOGINS_AT_ONCE, so that logins do not take all connections."""
REFUSED_LOGIN_S: Final = 1.0
"""A refused login takes at least that long, so that nobody tries passwords quickly."""
USER_CHARACTERS_MAX: Final = 1_000


class Site:
    """All pages. Threads share it.

    Args:
        settings: the appliance's.
        address: where the broker slots are.
        complain: writes a line for the operator.
    """

    def __init__(
        self,
        settings: Settings,
        address: BrokerAddress,
        sessions: Sessions,
        history: History,
        observer: Observer,
        *,
        own_log: OwnLog,
        clock: Clock,
        complain: Callable[[str], object],
    ) -> None:
        self.address = address
        self.sessions = sessions
        self.clock = clock
        self._observer = observer
        self.streams = Streams()
        self._renderer = Renderer()
        self._shared = Shared(
            settings,
            sessions,
            history,
            self.streams,
            clock,
            self.look,
            self._renderer,
            frozenset(path for method, path in ROUTES if method == "GET"),
            Decoder(settings.console.schema_directory, settings.console.schema_registry),
            own_log,
        )
        self.refused_logins = 0
        self.refused_requests = 0
        self._complain = complain
        self._logins = threading.BoundedSemaphore(LOGINS_AT_ONCE)
        # Cookies do not know ports, and a host may have several consoles.
        self.cookie = f"appliance_console_{settings.console.address[1]}"

    def is_known(self, cookies: Mapping[str, str]) -> bool:
        """Return whether cookies are those of a session."""
        token = cookies.get(self.cookie, "")
        return self.sessions.find(token, now_ns=self.clock.monotonic_ns()) is not None

    def serve(self, request: Request) -> Response:
        """Answer a request."""
        try:
            response = self._serve(request)
            if response.stream is None:
                return response
            return replace(response, stream=self._streamed(request, response.stream))
        except Exception as error:  # one page fails, and the next one may not
            self._complain(f"internal error in the page {request.path!r}: {error!r}")
            return self._shared.page(
                "error.html", None, status=500, text="internal error: see the log of the appliance"
            )

    def _streamed(self, request: Request, stream: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the events of a stream; one that fails ends with an event that says so."""
        try:
            yield from stream
        except BadInput as error:
            yield event("ended", str(error))
        except OSError:
            raise  # the browser is gone
        except Exception as error:
            self._complain(f"internal error in the stream {request.path!r}: {error!r}")
            yield event("ended", "internal error: see the log of the appliance")

    def _serve(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        if method == "GET" and request.path.startswith("/assets/"):
            return self._renderer.asset(request.path.removeprefix("/assets/")) or self._missing(None)
        if method == "POST" and not is_same_site(request):
            self.refused_requests += 1
            return self._shared.page(
                "error.html", None, status=403, text="the request came from another web page"
            )
        if request.path == "/login":
            return self._log_in(request) if method == "POST" else self._login_page()
        session = self.sessions.find(request.cookies.get(self.cookie, ""), now_ns=self.clock.monotonic_ns())
        if session is None:
            if method == "GET" and request.headers.get("accept", "").startswith("text/event-stream"):
                return self._shared.page("error.html", None, status=401, text="log in first")
            return Response(303, headers=(("Location", "/login"),))
        if method == "POST" and not session.is_right(request.form.get("csrf", "")):
            self.refused_requests += 1
            return self._shared.page(
                "error.html", None, status=403, text="the form is out of date: load its page again"
            )
        if request.path == "/logout" and method == "POST":
            self.sessions.end(request.cookies.get(self.cookie, ""))
            return Response(303, headers=(("Location", "/login"), self._set_cookie("", request, ends=True)))
        look = self.look()
        if look is None:
            return self._shared.page(
                "error.html", None, status=503, text="there are no metadata yet: try again"
            )
        visit = Visit(self._shared, request, session, look)
        handler = ROUTES.get((method, request.path))
        if handler is None:
            return self._missing(visit)
        return self._handled(handler, visit)

    def _handled(self, handler: Handler, visit: Visit) -> Response:
        try:
            return handler(visit)
        except (NotThere, NotShown) as error:
            return self._missing(visit, str(error))
        except BadInput as error:
            return visit.page("error.html", status=400, text=str(error))
        except LoginRefused as error:
            # The password was changed, or the user removed: this session is of no more use.
            self.sessions.end(visit.request.cookies.get(self.cookie, ""))
            return self._login_page(status=403, text=str(error))
        except BrokerFault as error:
            return visit.page("error.html", status=502 if error.code is None else 403, text=str(error))

    def look(self) -> Look | None:
        """Return what there is in shared memory, at most a second old."""
        return self._observer.recent(now_ns=self.clock.monotonic_ns())

    def _missing(self, visit: Visit | None, text: str = "there is no such page") -> Response:
        return self._shared.page("error.html", visit, status=404, text=text)

    # Logging in

    def _login_page(self, *, status: int = 200, text: str = "", user: str = "") -> Response:
        return self._shared.page(
            "login.html",
            None,
            status=status,
            text=text,
            user=user,
            mechanisms=self.address.mechanisms,
            is_sasl=self.address.is_sasl,
            listener=self.address.listener.name,
        )

    def _log_in(self, request: Request) -> Response:
        credentials, user = None, ""
        if self.address.is_sasl:
            user, password = request.form.get("user", ""), request.form.get("password", "")
            mechanism = request.form.get("mechanism", self.address.mechanisms[0])
            if not user or not password or mechanism not in self.address.mechanisms:
                return self._login_page(status=400, text="Write a user and a password.", user=user)
            if (
                len(user) > USER_CHARACTERS_MAX
                or len(password) > USER_CHARACTERS_MAX
                or "\0" in user + password
            ):
                return self._login_page(status=400, text="The user or the password cannot be one.")
            credentials = Credentials(mechanism, user, password)
        link = Link(self.address, credentials)
        if not self._logins.acquire(timeout=LOGIN_WAIT_S):
            return self._login_page(status=503, text="Too many people log in at once: try again.", user=user)
        try:
            try:
                link.ask(ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(False))
            except LoginRefused:
                self.refused_logins += 1
                time.sleep(REFUSED_LOGIN_S)
                assert credentials is not None
                text = "The broker does not accept this user with this password."
                return self._login_page(status=403, text=text, user=credentials.user)
            except BrokerFault as fault:
                return self._login_page(status=502, text=f"No login now: {fault}.")
        finally:
            self._logins.release()
        self.sessions.end(request.cookies.get(self.cookie, ""))
        session = Session(link, credentials, now_ns=self.clock.monotonic_ns())
        token = self.sessions.add(session)
        return Response(303, headers=(("Location", "/"), self._set_cookie(token, request)))

    def _set_cookie(self, token: str, request: Request, *, ends: bool = False) -> tuple[str, str]:
        # Behind a proxy with TLS, the browser names its address with https; it then sends the cookie there only.
        secure = "; Secure" if request.headers.get("origin", "").lower().startswith("https://") else ""
        age = "; Max-Age=0" if ends else ""
        return "Set-Cookie", f"{self.cookie}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{age}"


def is_same_site(request: Request) -> bool:
    """Return whether the browser says that a page of this console sent the request, or says nothing.

    Scripts outside of browsers send neither header; the secret of the form is checked in any case.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
    except ValueError:
        return False
