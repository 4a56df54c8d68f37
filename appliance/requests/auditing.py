"""What of the requests of a network process goes into the audit journal (docs/audit-log.md).

    refusal    a guard, or a handler that looks itself, calls `denied` for each operation that a rule does not allow
               on a thing that the request names. What a list leaves out is no refusal.
    change     `asked` keeps the request of an admin API, and `answered` takes the response that the client gets. If
               the client leaves before, `left` records that the outcome is not known.

Nothing here waits. Without `audit.log.events` there is no `Auditing`.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any, Final, NamedTuple

from appliance.access.addresses import one_spelling
from appliance.audit.changes import CHANGES, DAILY, is_daily_work, named
from appliance.audit.entry import DENIED, RESOURCES_MAX, Resource, cut
from appliance.audit.recorder import Recorder
from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.requests.session import ANONYMOUS, Request, Session
from appliance.requests.steps import Steps

_log: Final = logging.getLogger(__name__)
_CHANGES: Final = {int(api): describe for api, describe in CHANGES.items()}
_PIECE: Final = 200
LEFT_MAX: Final = 500
"""Resources that are recorded of a request whose client has left."""


class Auditing:
    """The journal's entries about requests of one network process."""

    __slots__ = ("_count", "_denied", "_faults", "_of", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._of: Request | None = None
        self._faults: set[int] = set()  # APIs of which a line has said that the journal fails
        self._count = 0
        # Of the request `_of`: operation, resource type and name. A dictionary, because one may come twice.
        self._denied: dict[tuple[int, int, str], None] = {}
        recorder.before_flush(self._tell_denied)

    @property
    def records_refusals(self) -> bool:
        """Whether `denied` records anything."""
        return self._recorder.records_refusals

    def records_changes_by(self, api_key: int) -> bool:
        """Whether what becomes of requests with this key is recorded."""
        return api_key in _CHANGES and self._recorder.records_changes

    # Authentications

    def authenticated(self, session: Session, *, mechanism: str) -> None:
        """Record that a session has its principal now. A client without a certificate has proved nothing.

        Every way to authenticate calls this once for each session, and again when a session authenticates again.

        Args:
            mechanism: `SSL`, `SCRAM-SHA-512`, `CURVE`, …
        """
        if session.principal != ANONYMOUS:
            self._recorder.authentication(
                principal=session.principal,
                host=session.host,
                port=session.peer_port,
                listener=session.listener,
                mechanism=mechanism,
                connection=session.connection_id,
            )

    def failed(self, session: Session, *, mechanism: str, claimed: str, why: str) -> None:
        """Record that a session's client has not proved who it is.

        Args:
            claimed: the principal that it claims to be, "" where it names none.
            why: what the operator should know, without any secret.
        """
        self._recorder.authentication(
            principal=claimed,
            host=session.host,
            port=session.peer_port,
            listener=session.listener,
            mechanism=mechanism,
            connection=session.connection_id,
            error=why,
        )

    def not_admitted(self, address: str, mechanism: str) -> None:
        """Record a ZeroMQ client whose key or user is not admitted, before it is a session."""
        self._recorder.authentication(
            principal="",
            host=one_spelling(address),
            port=0,
            listener="ZeroMQ",
            mechanism=mechanism,
            error="it is not admitted",
        )

    # Refusals

    def denied(self, pending: Request, operation: int, resource_type: int, name: str) -> None:
        """A rule keeps the request from this operation. Those of one request become one entry."""
        if not self._recorder.records_refusals:
            return
        if self._of is not pending:
            self._tell_denied()
            self._of = pending
        self._count += 1
        if len(self._denied) < RESOURCES_MAX:
            self._denied[operation, resource_type, name] = None
        self._recorder.arm()

    def _tell_denied(self) -> None:
        pending, self._of = self._of, None
        if pending is None:
            return
        denied, self._denied = self._denied, {}
        count, self._count = self._count, 0
        self._recorder.refusal(
            pending.session,
            api=_title(pending.api_key),
            version=pending.version,
            count=count,
            resources=[
                Resource(
                    _word(ResourceType(kind)), cut(name), DENIED, operation=_word(AclOperation(operation))
                )
                for operation, kind, name in denied
            ],
        )

    # Changes

    def asked(self, pending: Request, request: Any) -> None:
        """Keep the request as its client sent it."""
        if self.records_changes_by(pending.api_key) and not is_daily_work(pending.api_key, request):
            pending.session.audited = Audited(pending, request)

    def left(self, session: Session) -> None:
        """The session has ended, and what it asked for last is not answered: nobody else would hear of the change."""
        audited, session.audited = session.audited, None
        if audited is None:
            return
        pending: Request = audited.pending
        for _ in self._recorder.change(
            session,
            api=_title(pending.api_key),
            version=pending.version,
            resources=list(islice(named(audited.request), LEFT_MAX)),
            is_daily=pending.api_key in DAILY,
        ):
            pass

    def answered(self, pending: Request, response: Any) -> Steps[None]:
        """Record what became of the request that was kept, if one was."""
        session = pending.session
        audited, session.audited = session.audited, None
        if audited is None:
            return
        request = audited.request
        try:
            resources: list[Resource] = []
            for number, each in enumerate(_CHANGES[pending.api_key](request, response), 1):
                resources.append(each)
                if not number % _PIECE:
                    yield from self._changed(pending, resources)
                    resources = []
            yield from self._changed(pending, resources)
        except Exception:
            # The change took place. Its client gets the answer, whatever is wrong with the journal.
            if pending.api_key not in self._faults:
                self._faults.add(pending.api_key)
                _log.exception("internal error: %s is not in the audit journal", _title(pending.api_key))

    def changed(self, pending: Request, resources: list[Resource]) -> Steps[None]:
        """Record changes that a request of another API has caused, such as the automatic creation of topics."""
        if self._recorder.records_changes:
            yield from self._changed(pending, resources)

    def _changed(self, pending: Request, resources: list[Resource]) -> Steps[None]:
        if resources:
            yield from self._recorder.change(
                pending.session,
                api=_title(pending.api_key),
                version=pending.version,
                resources=resources,
                is_daily=pending.api_key in DAILY,
            )


class Audited(NamedTuple):
    """A request for changes that is being served, as its client sent it."""

    pending: Request
    request: Any


class AuditedRequest(NamedTuple):
    """What a handler that looks itself tells the journal about its request."""

    auditing: Auditing
    pending: Request

    def denied(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """See `Auditing.denied`."""
        self.auditing.denied(self.pending, operation, resource_type, name)

    def changed(self, resources: list[Resource]) -> Steps[None]:
        """See `Auditing.changed`."""
        return self.auditing.changed(self.pending, resources)


def _title(api_key: int) -> str:
    return ApiKey(api_key).title


def _word(value: ResourceType | AclOperation) -> str:
    return value.name.lower().replace("_", "-")
