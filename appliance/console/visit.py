"""One request of a person who has logged in, and what a handler of a page needs to answer it.

A handler acts only through `visit.link`, which has the person's rights. What it shows of shared memory is either about
topics that the broker has listed for this person, or needs the operation Describe on the cluster, for which the broker
is asked, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from appliance.clock import Clock
from appliance.cluster import ClusterImage, TopicImage
from appliance.config import Settings
from appliance.console.decoding import Shown, shown
from appliance.console.history import History
from appliance.console.observation import Look
from appliance.console.own_log import OwnLog
from appliance.console.rendering import Renderer
from appliance.console.server import Request, Response
from appliance.console.sessions import Session, Sessions
from appliance.protocol.acl import AclOperation
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.schemas.decoder import Decoded, Decoder
from appliance.schemas.faults import Undecodable

STREAMS_MAX: Final = 24
STREAMS_OF_SESSION_MAX: Final = 6
VISIBLE_S: Final = 10
"""How long the list of topics that a person may see is used again while the metadata do not change."""


DECODING_S: Final = 5.0
"""For decoding all records of one page by their schemas, or of one round of a stream. One record takes up to a second,
and a page has up to 500 with a key each."""


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


@dataclass(frozen=True, slots=True)
class Shared:
    """What all visits have in common.

    Args:
        look: returns what there is in shared memory, at most a second old; None before there are metadata.
        paths: of the pages, for the navigation.
        decoder: of records by their schemas.
        own_log: the last lines of all processes.
    """

    settings: Settings
    sessions: Sessions
    history: History
    streams: Streams
    clock: Clock
    look: Callable[[], Look | None]
    renderer: Renderer
    paths: Collection[str]
    decoder: Decoder
    own_log: OwnLog

    def page(self, template: str, visit: Visit | None, *, status: int = 200, **values: Any) -> Response:
        """Return a page; without a visit it has no navigation."""
        text = self.renderer.render(
            template,
            visit=visit,
            csrf=visit.session.csrf if visit else "",
            notices=visit.session.take_notices() if visit else [],
            cluster_id=visit.image.cluster_id if visit else "",
            **values,
        )
        return Response(status, text.encode())


class Visit:
    """One request of a person who has logged in, and what a handler needs to answer it."""

    def __init__(self, site: Shared, request: Request, session: Session, look: Look) -> None:
        self.site = site
        self.request = request
        self.session = session
        self.look = look
        self.link = session.link
        self._decoding_left_s = DECODING_S

    def is_below(self, path: str) -> bool:
        """Return whether this page belongs to a part of the navigation: `/topics` is about `/topic/…` too."""
        here = self.request.path
        return (
            here == path
            or (path != "/" and here.startswith((path + "/", path.removesuffix("s") + "/")))
            or (path.endswith("s") and here == path.removesuffix("s"))
        )

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

    def as_of_now(self) -> Visit:
        """Return this visit with the newest look, for a stream that goes on for long."""
        return Visit(self.site, self.request, self.session, self.site.look() or self.look)

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

    # What a record holds

    def shown(
        self, data: bytes | None, *, topic: str, part: str, form: str = "auto", bytes_max: int | None = None
    ) -> Shown:
        """Return what to show of a key or value, by its schema if it has one.

        Args:
            part: "key" or "value".
            bytes_max: at most those of console.value.max.bytes.
        """
        most = self.site.settings.console.value_max_bytes
        decode = partial(self._decoded, topic, part)
        return shown(
            data, form=form, bytes_max=most if bytes_max is None else min(bytes_max, most), decode=decode
        )

    def _decoded(self, topic: str, part: str, data: bytes, form: str) -> Decoded:
        if self._decoding_left_s <= 0:
            raise Undecodable(f"not decoded, because others of this page took {DECODING_S:.0f} s")
        began_s = time.monotonic()
        try:
            return self.site.decoder.decode(data, topic=topic, part=part, form=form)
        finally:
            self._decoding_left_s -= time.monotonic() - began_s

    def begin_round(self) -> None:
        """Give a stream its time to decode again."""
        self._decoding_left_s = DECODING_S

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
