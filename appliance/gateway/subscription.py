"""A push subscription: one partition, read on behalf of a session for as long as the session lasts. State only.

To the handlers a subscription is a session of its own, which asks with one Fetch after the other. So what is pushed is
what a Fetch would have answered: bounded by the high watermark or the last stable offset, with its errors, and without
any cost while nothing is committed, because the Fetch waits in the purgatory.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from appliance.cluster import AclBinding, ClusterImage
from appliance.gateway.frames import Subscribe
from appliance.gateway.pushed import Pushed
from appliance.gateway.session import GatewaySession, Sent, leaving, release
from appliance.requests.session import Session

MAX_WAIT_MS: Final = 60_000

FETCH_AGAIN_MS: Final = 10
_FETCH_AGAIN_MAX_MS: Final = 640
_WAITED_NS: Final = 1_000_000_000


def again_ms(before_ms: int, waited_ns: int) -> int:
    """Return how long to wait before the next Fetch, where one has brought nothing.

    A process that holds too many waits answers the oldest at once (`network.waiting.fetch.partitions.max`). If each of
    these fetched again at once, they would end one another's waits for ever.

    Args:
        before_ms: what this returned the last time.
        waited_ns: how long the Fetch has waited.
    """
    return FETCH_AGAIN_MS if waited_ns >= _WAITED_NS else min(2 * before_ms, _FETCH_AGAIN_MAX_MS)


class Led(NamedTuple):
    """What a Fetch of a partition goes by: which topic of that name it is, its leader, and its row."""

    topic_id: UUID
    leader: int
    leader_epoch: int
    row: int
    incarnation: int


def led_by(image: ClusterImage | None, topic: str, partition: int) -> Led | None:
    """Return what a Fetch goes by in an image; None where there is no such partition."""
    found = None if image is None else image.topics.get(topic)
    if found is None or partition >= len(found.partitions):
        return None
    one = found.partitions[partition]
    return Led(found.topic_id, one.leader, one.leader_epoch, one.row, one.incarnation)


class Subscription(Session):
    """One partition that is pushed to `owner`.

    A Fetch that waits goes by the metadata image of its beginning. `led` and `acls` are of that image, so that a change
    ends the wait.

    Args:
        owner: the client's session, whose window and connection it uses.
        wanted: what the client asked for.
    """

    __slots__ = (
        "acls",
        "again_ms",
        "asked_ns",
        "led",
        "next_offset",
        "out",
        "owner",
        "pushed",
        "topic_bytes",
        "wanted",
    )

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
        self.asked_ns = now_ns  # when the last Fetch began
        self.again_ms = FETCH_AGAIN_MS
        self.led: Led | None = None
        self.acls: tuple[AclBinding, ...] = ()
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

    def discard_answer(self) -> None:
        """Forget the answer to the Fetch, which is there and not sent."""
        self.abandon()
        self.queue = None

    def __str__(self) -> str:
        return (
            f"subscription {self.wanted.number} ({self.wanted.topic}-{self.wanted.partition}) of {self.owner}"
        )
