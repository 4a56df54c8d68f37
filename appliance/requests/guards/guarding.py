"""Guards on the way of a request: before it is served, and on the way of its response.

in this process           the handler has decoded the request: `judged`
at a coordinator          the frame is decoded here, judged, and written anew into its block where some of it is denied;
                          what the coordinator answers is amended before it leaves
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from appliance.ipc.agent import Timers
from appliance.protocol.headers import RequestHeader
from appliance.protocol.messages import decode_request_in_pieces, decode_response, encode_request_body
from appliance.requests.answer import Piece
from appliance.requests.auditing import Auditing
from appliance.requests.guards.table import GUARDS
from appliance.requests.guards.verdict import Caller, Refused, Verdict
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.long_requests import LongRequests
from appliance.requests.rights import Rights
from appliance.requests.session import Request
from appliance.requests.steps import Steps, answering
from appliance.requests.topic_routes import TopicRoutes

Begin = Callable[[Request, memoryview, RequestHeader, int, int], None]
Concerns = Callable[[int, memoryview, int, int], bool]
"""Takes the version, a view, and where in it the body begins and ends. Raises MalformedFrame."""

_GUARDS: Final = {int(api): guard for api, guard in GUARDS.items()}
AMENDED_AT_ONCE_BYTES: Final = 32 << 10
"""A response up to this size is decoded, amended and encoded in one piece."""


class Denied(Exception):
    """Nothing of a request is allowed; `response` says so."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


class Guarding:
    """The guards of one network process that checks rights, or that records changes in the audit journal.

    Args:
        rights: None where everybody may do everything.
        finish: takes the answers of refused requests.
        auditing: None where there is no journal.
    """

    __slots__ = ("_finish", "_long", "_routes", "_timers", "auditing", "rights")

    def __init__(
        self,
        rights: Rights | None,
        routes: TopicRoutes,
        *,
        long: LongRequests,
        timers: Timers,
        finish: Finish,
        auditing: Auditing | None = None,
    ) -> None:
        self.rights = rights
        self.auditing = auditing
        self._routes = routes
        self._long = long
        self._timers = timers
        self._finish = finish

    def judged(self, pending: Request, request: Any) -> Steps[Any]:
        """The request, or what is left of it; then the session's `amend` is for its response.

        Raises:
            Denied: nothing is left.
        """
        auditing, rights = self.auditing, self.rights
        if auditing is not None:
            auditing.asked(pending, request)
        verdict: Verdict = None
        guard = _GUARDS.get(pending.api_key)
        if guard is not None and rights is not None:
            caller = Caller(pending.session, pending.version, rights, self._routes)
            verdict = yield from guard(request, caller)
            denied, caller.denied = caller.denied, None
            if auditing is not None and verdict is not None:
                for operation, kind, name in denied or ():
                    auditing.denied(pending, operation, kind, name)
        if verdict is None:
            return request
        if isinstance(verdict, Refused):
            pending.session.audited = None  # the refusal says it all
            raise Denied(verdict.response)
        pending.session.amend = verdict.amend
        return verdict.request

    def answered(self, pending: Request, response: Any) -> Steps[Any]:
        """The response that the client gets, for a request that was `judged`."""
        session = pending.session
        amend, session.amend = session.amend, None
        if amend is not None:
            response = amend(response)
        if session.audited is not None and self.auditing is not None:
            yield from self.auditing.answered(pending, response)
        return response

    def before(self, begin: Begin, *, only: Concerns | None = None) -> Begin:
        """What takes the requests of an API in the place of `begin`, for coordinators.

        `only`: the requests that it decodes; the others go on as they are.
        """

        def guarded(pending: Request, view: memoryview, header: RequestHeader, start: int, end: int) -> None:
            if only is not None and not only(header.version, view, header.body_position, end):
                begin(pending, view, header, start, end)
                return

            def go_on(end: int) -> None:
                begin(pending, view, header, start, end)

            steps = self._guarded(go_on, pending, view, header.body_position, end)
            self._long.begin(pending, steps, end - header.body_position)

        return guarded

    def _guarded(
        self, begin: Callable[[int], None], pending: Request, view: memoryview, position: int, end: int
    ) -> Steps[None]:
        """`begin` takes the end of what is left of the frame."""
        key, version = pending.api_key, pending.version
        request = yield from decode_request_in_pieces(key, version, view, position, end)
        try:
            left = yield from self.judged(pending, request)
        except Denied as denied:
            yield from answering(self._finish, pending, denied.response)
            return
        if left is not request:
            body = encode_request_body(key, version, left)
            # A part of the request takes no more room than all of it did: what is longer than need be stays.
            assert len(body) <= end - position
            view[position : position + len(body)] = body
            end = position + len(body)
        # The work in pieces is over when this returns, and gives the block back: it goes on by itself.
        block, pending.block = pending.block, None

        def go_on() -> None:
            pending.block = block
            if pending.session.closed:
                self._finish(pending, [])
                return
            try:
                begin(end)
            except Exception as error:
                # A timer's action runs in the duty cycle, where an error would end the process with every session.
                self._long.contain(pending, error)

        self._timers.after_ms(0, go_on)

    def amending(self, finish: Finish) -> Finish:
        """A `finish` that amends the response of a request of which only a part was allowed."""

        def finish_amended(pending: Request, answer: list[Piece]) -> None:
            session = pending.session
            if session.amend is None and session.audited is None:
                finish(pending, answer)
                return
            if not answer or not all(answer) or session.closed:
                session.amend = session.audited = None
                finish(pending, answer)
                return
            (frame,) = answer
            assert isinstance(frame, bytes)
            steps = self._amended(finish, pending, frame)
            if len(frame) > AMENDED_AT_ONCE_BYTES:
                self._timers.after_ms(0, lambda: self._begin_amending(finish, pending, steps, len(frame)))
                return
            try:
                for _ in steps:
                    pass
            except Exception as error:
                self._long.contain(pending, error)

        return finish_amended

    def _begin_amending(self, finish: Finish, pending: Request, steps: Steps[None], size_bytes: int) -> None:
        if pending.session.closed:
            finish(pending, [])
        else:
            self._long.begin(pending, steps, size_bytes)

    def _amended(self, finish: Finish, pending: Request, frame: bytes) -> Steps[None]:
        _, response = decode_response(pending.api_key, pending.version, memoryview(frame))
        yield None
        is_amended = pending.session.amend is not None
        response = yield from self.answered(pending, response)
        if is_amended:
            yield from answering(finish, pending, response)
        else:
            finish(pending, [frame])
