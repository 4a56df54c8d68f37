"""Requests that need no log: decode, let the API's handler decide, encode; ask the controller where it must. All in
pieces (`long_requests`), since a request may name 100,000 things, and a short one ask for everything.

Metadata answers cost much to encode, and until the image changes they are the same for every client that came by the
same address and may see the same topics. So the body of an answer is kept under the bytes of its question and the
rights of the session that asked, and sent again with another correlation id.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from appliance.channels.partition_table import PartitionTable
from appliance.clock import Clock
from appliance.config import Settings
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.headers import response_frame
from appliance.protocol.messages import decode_request_in_pieces, encode_response_body_in_pieces, prepare
from appliance.requests.auditing import AuditedRequest
from appliance.requests.client_telemetry import ClientTelemetry
from appliance.requests.guards.guarding import Denied, Guarding
from appliance.requests.local_handlers.metadata import asked_by_id
from appliance.requests.local_handlers.view import LocalView, ProducerIds
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.long_requests import LongRequests
from appliance.requests.meter import Meter
from appliance.requests.session import Request
from appliance.requests.steps import Steps, answering
from appliance.requests.topic_routes import TopicRoutes

LocalHandler = Callable[[Any, LocalView], Any]
"""Takes the decoded request; returns the response, or the Steps that return it."""

PREPARED = ((int(ApiKey.API_VERSIONS), 3), (int(ApiKey.METADATA), 12))
"""Compiled before the first client asks; other codecs are compiled when they are first used."""

_Question = tuple[int, int, bytes, str | None, int | None, str, int, str]
"""What an answer is kept under: slot, version, body of the request, host and port that the client is told, its
principal, the version of the rights that the answer was made under, and the client's host where rules may name it."""

_RIGHTS_VERSION: Final = 6
KEPT_ANSWERS_MAX = 64
KEPT_BYTES_MAX = 16 << 20
KEPT_QUESTION_BYTES = 64 << 10


def prepare_codecs() -> None:
    """Compile the codecs of what a client asks first, ApiVersions and Metadata."""
    prepare(*PREPARED)


class LocalRequests:
    """Serves the APIs of `handlers`, by key, for one network process."""

    __slots__ = (
        "_clock",
        "_finish",
        "_guarding",
        "_handlers",
        "_is_checked",
        "_kept",
        "_kept_bytes",
        "_kept_version",
        "_long",
        "_partitions",
        "_pool",
        "_producer_ids",
        "_routes",
        "_settings",
        "meter",
        "telemetry",
    )

    def __init__(
        self,
        settings: Settings,
        routes: TopicRoutes,
        *,
        handlers: Mapping[int, LocalHandler],
        long: LongRequests,
        pool: BufferPool,
        producer_ids: ProducerIds,
        partitions: PartitionTable,
        clock: Clock,
        finish: Finish,
        guarding: Guarding | None = None,
    ) -> None:
        self._guarding = guarding
        self._is_checked = guarding is not None and guarding.rights is not None
        self.meter: Meter | None = None
        self.telemetry: ClientTelemetry | None = None
        self._settings = settings
        self._routes = routes
        self._handlers = handlers
        self._producer_ids = producer_ids
        self._partitions = partitions
        self._clock = clock
        self._long = long
        self._pool = pool
        self._finish = finish
        self._kept: dict[_Question, bytes] = {}
        self._kept_bytes = 0
        self._kept_version = -1

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> None:
        """Answers now, or in pieces, or when the controller has. A body that does not parse closes its connection."""
        if pending.api_key == ApiKey.METADATA and end - position <= KEPT_QUESTION_BYTES:
            session = pending.session
            question = (
                session.slot,
                pending.version,
                bytes(view[position:end]),
                session.told_host,
                session.told_port,
                session.principal,
                session.rights_version,
                session.host if self._is_checked else "",
            )
            kept = self._kept_answer(question)
            if kept is not None:
                self._finish_body(pending, kept)
                return
            steps = self._serve(pending, view, position, end, question)
        else:
            steps = self._serve(pending, view, position, end, None)
        self._long.begin(pending, steps, end - position)

    def _serve(
        self, pending: Request, view: memoryview, position: int, end: int, question: _Question | None
    ) -> Steps[None]:
        key, version = pending.api_key, pending.version
        request = yield from decode_request_in_pieces(key, version, view, position, end)
        pending.give_block(self._pool)
        if key == ApiKey.METADATA and (refused := asked_by_id(request, version)) is not None:
            yield from answering(self._finish, pending, refused)
            return
        image_version = self._routes.version
        guarding = self._guarding
        if guarding is not None:
            try:
                request = yield from guarding.judged(pending, request)
            except Denied as denied:
                yield from answering(self._finish, pending, denied.response)
                return
        local = LocalView(
            self._settings,
            self._routes,
            self._producer_ids,
            self._partitions,
            self._clock,
            pending.session,
            None if guarding is None else guarding.rights,
            None
            if guarding is None or guarding.auditing is None
            else AuditedRequest(guarding.auditing, pending),
            self.meter,
            version,
            self.telemetry,
        )
        response = self._handlers[key](request, local)
        if isinstance(response, Generator):
            response = yield from response
        if guarding is not None:
            response = yield from guarding.answered(pending, response)
        if key == ApiKey.API_VERSIONS:
            response = response.of_version(version)
        body = yield from encode_response_body_in_pieces(key, version, response)
        if (
            question is not None
            # The rights may have changed while the answer was made: it belongs to neither version then.
            and question[_RIGHTS_VERSION] == pending.session.rights_version
            and image_version == self._routes.version == self._kept_version
            # Of what does not exist the next one who asks may begin the creation again.
            and not any(topic.error_code for topic in response.topics)
        ):
            self._keep(question, body)
        self._finish_body(pending, body)

    def _finish_body(self, pending: Request, body: bytes) -> None:
        header = ApiKey(pending.api_key).response_header_version(pending.version)
        self._finish(pending, [response_frame(header, pending.correlation_id, body)])

    def _kept_answer(self, key: _Question) -> bytes | None:
        version = self._routes.version
        if version != self._kept_version:
            self._kept.clear()
            self._kept_bytes = 0
            self._kept_version = version
            return None
        return self._kept.get(key)

    def _keep(self, key: _Question, body: bytes) -> None:
        if len(self._kept) >= KEPT_ANSWERS_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[key] = body
        self._kept_bytes += len(body) + len(key[2])
