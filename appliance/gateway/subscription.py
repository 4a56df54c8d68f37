"""A push subscription: one partition, read on behalf of a session for as long as the session lasts. State only.

To the handlers a subscription is a session of its own, which asks with one Fetch after the other. So what is pushed is
what a Fetch would have answered: bounded by the high watermark or the last stable offset, with its errors, and without
any cost while nothing is committed, because the Fetch waits in the purgatory.
"""

from __future__ import annotations

from typing import Final

from appliance.gateway.frames import Subscribe
from appliance.gateway.pushed import Pushed
from appliance.gateway.session import GatewaySession, Sent, leaving, release
from appliance.requests.session import Session

MAX_WAIT_MS: Final = 60_000


class Subscription(Session):
    """One partition that is pushed to `owner`.

    Args:
        owner: the client's session, whose window and connection it uses.
        wanted: what the client asked for.
    """

    __slots__ = ("next_offset", "out", "owner", "pushed", "topic_bytes", "wanted")

    def __init__(
        self, owner: GatewaySession, wanted: Subscribe, *, connection_id: int, number: int, now_ns: int
    ) -> None:
        super().__init__(
            connection_id=connection_id,
            number=number,
            slot=owner.slot,
            listener=owner.listener,
            peer_host=owner.peer_host,
            peer_port=owner.peer_port,
            now_ns=now_ns,
        )
        self.principal = owner.principal
        self.client_id = owner.client_id
        self.owner = owner
        self.wanted = wanted
        self.topic_bytes = len(wanted.topic.encode())
        self.next_offset = wanted.offset
        self.out: list[Sent] = []  # what is left of a response that is leaving; from the end of the list
        self.pushed: Pushed | None = None  # that response

    def collect(self) -> bool:
        """Take the answer to the Fetch; return whether there is something to push.

        Raises:
            MalformedFrame: internal error: the answer is no Fetch response.
        """
        queue = self.queue
        if queue is None or (answer := queue[0].answer) is None:
            return False
        self.queue = None
        self.out = leaving(answer)
        head = self.out[-1]
        assert isinstance(head, memoryview)
        pushed = Pushed(head, self.topic_bytes)
        if not pushed.error and not pushed.records_bytes:
            self.abandon()
            return False
        self.pushed = pushed
        return True

    def abandon(self) -> None:
        """Release the segments that the response would have been sent from."""
        release(self.out)
        self.out = []
        for request in self.queue or ():
            release(request.answer or ())

    def __str__(self) -> str:
        return (
            f"subscription {self.wanted.number} ({self.wanted.topic}-{self.wanted.partition}) of {self.owner}"
        )
