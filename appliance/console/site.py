"""Requests to pages: who asks, whether the request came from a page of this console, and which handler answers.

    request ─→ asset? ─→ from another site? 403 ─→ session? else the login ─→ POST without its secret? 403 ─→ handler

A handler gets a `Visit` and returns a response. It acts only through `visit.link`, which has the person's rights. What
it shows of shared memory is either about topics that the broker has listed for this person, or needs the operation
Describe on the cluster, for which the broker is asked, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from appliance.clock import Clock
from appliance.cluster import ClusterImage, TopicImage
from appliance.config import Settings
from appliance.console.history import History
from appliance.console.kafka_link import BrokerAddress, BrokerFault, Credentials, Link, LoginRefused
from appliance.console.observation import Look, Observer
from appliance.console.rendering import Renderer
from appliance.console.server import Request, Response
from appliance.console.sessions import Session, Sessions
from appliance.protocol.acl import AclOperation
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector

STREAMS_MAX: Final = 24
STREAMS_OF_SESSION_MAX: Final = 6
LOGINS_AT_ONCE: Final = 4
REFUSED_LOGIN_S: Final = 1.0
"""A refused login takes at least that long, so that nobody tries passwords quickly."""
VISIBLE_S: Final = 10
"""How long the list of topics that a person may see is used again while the metadata do not change."""
USER_CHARACTERS_MAX: Final = 1_000


class NotThere(Exception):
    """There is no such page, topic or group."""


class BadInput(Exception):
    """A form or a query holds what it cannot hold. The text is for the person."""


class Streams:
    """How many live streams there are, in all and of each session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[int, int] = {}

    @property
    def count(self) -> int:
        """All streams."""
        return sum(self._of.values())

    @contextmanager
    def one(self, session: Session) -> Iterator[None]:
        """Count a stream while it runs.

        Raises:
            BadInput: there are too many.
        """
        key = id(session)
        with self._lock:
            if sum(self._of.values()) >= STREAMS_MAX or self._of.get(key, 0) >= STREAMS_OF_SESSION_MAX:
                raise BadInput("too many live pages are open")
            self._of[key] = self._of.get(key, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._of[key] -= 1
                if not self._of[key]:
                    del self._of[key]


class Visit:
    """One request of a person who has logged in, and what a handler needs to answer it."""

    def __init__(self, site: Site, request: Request, session: Session, look: Look) -> None:
        self.site = site
        self.request = request
        self.session = session
        self.look = look
        self.link = session.link

    # What was asked

    def asked(self, name: str, default: str = "") -> str:
        """Return a field of the form, else of the query."""
        return self.request.form.get(name, self.request.query.get(name, default))

    def number(self, name: str, default: int, *, minimum: int = 0, maximum: int = 1 << 62) -> int:
        """Return a field that is a whole number.

        Raises:
            BadInput: it is none, or out of bounds.
        """
        text = self.asked(name).strip()
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum or len(text) > 20:
            raise BadInput(f"{name}: must be a whole number from {minimum} to {maximum}")
        return value

    # What this person may see

    @property
    def image(self) -> ClusterImage:
        """The metadata image of the look."""
        return self.look.image

    @property
    def may_describe_cluster(self) -> bool:
        """Whether the broker lets this person describe the cluster: processes, sizes on disk, disks."""

        def ask() -> bool:
            answer = self.link.ask(
                ApiKey.DESCRIBE_CLUSTER,
                2,
                DescribeClusterRequest(include_cluster_authorized_operations=True),
            )
            return bool(
                not answer.error_code
                and answer.cluster_authorized_operations >= 0
                and answer.cluster_authorized_operations & 1 << AclOperation.DESCRIBE
            )

        return bool(self.session.cached("cluster", self._version(), ask))

    def topic_names(self) -> list[str]:
        """Return the names of all topics that the broker lists for this person, in order."""

        def ask() -> list[str]:
            answer = self.link.ask(
                ApiKey.METADATA, 12, MetadataRequest(None, allow_auto_topic_creation=False)
            )
            return sorted(topic.name for topic in answer.topics if topic.name and not topic.error_code)

        names: list[str] = self.session.cached("topics", self._version(), ask)
        return [name for name in names if name in self.image.topics]

    def topic(self, name: str) -> TopicImage:
        """Return a topic that the broker describes for this person.

        Raises:
            NotThere: there is none, or the person may not see it.
        """

        def ask() -> bool:
            wanted = MetadataRequest((TopicSelector(name=name),), allow_auto_topic_creation=False)
            (answer,) = self.link.ask(ApiKey.METADATA, 12, wanted).topics
            return not answer.error_code

        topic = self.image.topics.get(name)
        if topic is None or not self.session.cached("topic", (name, self._version()), ask):
            raise NotThere(f"there is no topic {name}")
        return topic

    def _version(self) -> tuple[int, int]:
        return self.image.version, int(time.monotonic() / VISIBLE_S)

    # Answers

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        return self.site.page(template, self, status=status, **values)

    def back_to(self, path: str, **query: str) -> Response:
        """Send the browser to another page, after a change."""
        target = path + ("?" + urlencode(query, quote_via=quote) if query else "")
        return Response(303, headers=(("Location", target),))

    def done(self, text: str) -> None:
        """Show on the next page what was done."""
        self.session.notify("done", text)

    def failed(self, text: str) -> None:
        """Show on the next page what was not done."""
        self.session.notify("failed", text)


Handler = Callable[[Visit], Response]


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
        clock: Clock,
        complain: Callable[[str], object],
    ) -> None:
        from appliance.console.routes import ROUTES  # it imports the handlers, which import this file

        self.settings = settings
        self.address = address
        self.sessions = sessions
        self.history = history
        self.clock = clock
        self._observer = observer
        self.streams = Streams()
        self.refused_logins = 0
        self.refused_requests = 0
        self._complain = complain
        self._renderer = Renderer()
        self.routes: Mapping[tuple[str, str], Handler] = ROUTES
        self._logins = threading.BoundedSemaphore(LOGINS_AT_ONCE)
        # Cookies do not know ports, and a host may have several consoles.
        self.cookie = f"appliance_console_{settings.console.address[1]}"

    def serve(self, request: Request) -> Response:
        """Answer a request."""
        try:
            return self._serve(request)
        except Exception as error:  # one page fails, and the next one may not
            self._complain(f"internal error in the page {request.path!r}: {error!r}")
            return self.page(
                "error.html", None, status=500, text="internal error: see the log of the appliance"
            )

    def _serve(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        if method == "GET" and request.path.startswith("/assets/"):
            return self._renderer.asset(request.path.removeprefix("/assets/")) or self._missing(None)
        if method == "POST" and not is_same_site(request):
            self.refused_requests += 1
            return self.page("error.html", None, status=403, text="the request came from another web page")
        if request.path == "/login":
            return self._log_in(request) if method == "POST" else self._login_page()
        session = self.sessions.find(request.cookies.get(self.cookie, ""), now_ns=self.clock.monotonic_ns())
        if session is None:
            if method == "GET" and request.headers.get("accept", "").startswith("text/event-stream"):
                return self.page("error.html", None, status=401, text="log in first")
            return Response(303, headers=(("Location", "/login"),))
        if method == "POST" and not session.is_right(request.form.get("csrf", "")):
            self.refused_requests += 1
            return self.page(
                "error.html", None, status=403, text="the form is out of date: load its page again"
            )
        if request.path == "/logout" and method == "POST":
            self.sessions.end(request.cookies.get(self.cookie, ""))
            return Response(303, headers=(("Location", "/login"), self._set_cookie("", ends=True)))
        look = self.look()
        if look is None:
            return self.page("error.html", None, status=503, text="there are no metadata yet: try again")
        visit = Visit(self, request, session, look)
        handler = self.routes.get((method, request.path))
        if handler is None:
            return self._missing(visit)
        return self._handled(handler, visit)

    def _handled(self, handler: Handler, visit: Visit) -> Response:
        try:
            return handler(visit)
        except NotThere as error:
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

    def page(self, template: str, visit: Visit | None, *, status: int = 200, **values: Any) -> Response:
        """Return a page; without a visit it has no navigation."""
        text = self._renderer.render(
            template,
            visit=visit,
            csrf=visit.session.csrf if visit else "",
            notices=visit.session.take_notices() if visit else [],
            cluster_id=visit.image.cluster_id if visit else "",
            **values,
        )
        return Response(status, text.encode())

    def _missing(self, visit: Visit | None, text: str = "there is no such page") -> Response:
        return self.page("error.html", visit, status=404, text=text)

    # Logging in

    def _login_page(self, *, status: int = 200, text: str = "", user: str = "") -> Response:
        return self.page(
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
        credentials = None
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
        with self._logins:
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
        self.sessions.end(request.cookies.get(self.cookie, ""))
        session = Session(link, credentials, now_ns=self.clock.monotonic_ns())
        token = self.sessions.add(session)
        return Response(303, headers=(("Location", "/"), self._set_cookie(token)))

    def _set_cookie(self, token: str, *, ends: bool = False) -> tuple[str, str]:
        age = "; Max-Age=0" if ends else ""
        return "Set-Cookie", f"{self.cookie}={token}; Path=/; HttpOnly; SameSite=Strict{age}"


def is_same_site(request: Request) -> bool:
    """Return whether the browser says that a page of this console sent the request, or says nothing.

    Scripts outside of browsers send neither header; the secret of the form is checked in any case.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
