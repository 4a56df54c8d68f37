"""Push subscriptions of one network process: Fetch requests on behalf of clients, and their answers as pushes.

    SUBSCRIBE ─→ fetch ─→ Apis.serve ··· purgatory ··· answer ─→ push, while the window is open ─→ fetch

What one subscription is and keeps: `subscription`. What an answer holds: `pushed`.

A Fetch may wait for a minute, and goes by the metadata image of its beginning. Where the partition was deleted or made
again, has another leader, or other rules apply to the client, the wait ends and the next Fetch goes by the new image:
within a second, because the sweep looks for a new image. Records that came in that second are not pushed where the
rules have changed meanwhile, but fetched again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from appliance.cluster import AclBinding, ClusterImage
from appliance.errors import MalformedFrame, StorageFault
from appliance.gateway.frames import MORE, Code, Kind, Subscribe, broker_header
from appliance.gateway.outgoing import TURN_BYTES, Outgoing
from appliance.gateway.parts import take_part
from appliance.gateway.pushed import UNKNOWN_TOPIC, error_response, fetch_request
from appliance.gateway.session import GatewaySession
from appliance.gateway.session_numbers import SessionNumbers
from appliance.gateway.subscription import MAX_WAIT_MS, Subscription, led_by
from appliance.ipc.process_table import BYTES_OUT
from appliance.requests.session import Session
from appliance.requests.transport import TransportHost

_log: Final = logging.getLogger(__name__)

SUBSCRIPTIONS_MAX: Final = 1000
"""Of one session."""
PUSH_BYTES_MAX: Final = 8 << 20
FETCH_AGAIN_MS: Final = 10


class Pushing:
    """The subscriptions of one network process.

    Args:
        end_for: ends the session of a client with an error.
        contain: ends the session of a subscription, a Fetch of which could not be served.
    """

    __slots__ = (
        "_apis",
        "_cells",
        "_contain",
        "_end_for",
        "_host",
        "_image",
        "_image_version",
        "_numbers",
        "_outgoing",
        "_pool",
        "is_draining",
    )

    def __init__(
        self,
        host: TransportHost,
        outgoing: Outgoing,
        numbers: SessionNumbers,
        *,
        end_for: Callable[[GatewaySession, Code, str], None],
        contain: Callable[[Session, Exception], None],
    ) -> None:
        self._host = host
        self._pool = host.pool
        self._apis = host.apis
        self._cells = host.process.attachment.row.cells
        self._image = host.process.attachment.image
        self._image_version = 0
        self._outgoing = outgoing
        self._numbers = numbers
        self._end_for = end_for
        self._contain = contain
        self.is_draining = False  # then nothing is fetched any more

    def subscribe(self, session: GatewaySession, wanted: Subscribe, now_ns: int) -> None:
        """Begin a subscription.

        Raises:
            MalformedFrame: the session has one with this number.
        """
        if wanted.number in session.subscriptions:
            raise MalformedFrame(f"subscription {wanted.number} is there already")
        if len(session.subscriptions) >= SUBSCRIPTIONS_MAX:
            self._end_for(session, Code.LIMIT_EXCEEDED, f"more than {SUBSCRIPTIONS_MAX} subscriptions")
            return
        numbers = self._numbers
        subscription = Subscription(
            session, wanted, connection_id=numbers.new_id(), number=numbers.take(), now_ns=now_ns
        )
        session.subscriptions[wanted.number] = subscription
        self._outgoing.put(session, broker_header(Kind.SUBSCRIBED, subject=wanted.number))
        self.fetch(subscription)

    def unsubscribe(self, session: GatewaySession, number: int) -> None:
        """End a subscription, if it is there, and confirm that."""
        subscription = session.subscriptions.get(number)
        if subscription is not None:
            self.end(subscription)
        self._outgoing.put(session, broker_header(Kind.UNSUBSCRIBED, subject=number))

    def end(self, subscription: Session) -> None:
        """Drop a subscription with all that it waits for."""
        assert isinstance(subscription, Subscription)
        if subscription.closed:
            return
        subscription.closed = True
        del subscription.owner.subscriptions[subscription.wanted.number]
        self._numbers.give_back(subscription.number)
        self._outgoing.unsent.discard(subscription)
        subscription.abandon()
        self._host.end_requests(subscription)

    def resume(self, subscription: Subscription) -> None:
        """Fetch again for a subscription that was throttled."""
        if not subscription.queue and not subscription.out:
            self.fetch(subscription)

    def fetch(self, subscription: Subscription) -> None:
        """Ask for what comes next, and wait for it in the purgatory."""
        if subscription.closed or subscription.throttled_until_ns or subscription.queue or self.is_draining:
            return
        wanted = subscription.wanted
        image = self._image.current()
        led, before = led_by(image, wanted.topic, wanted.partition), subscription.led
        if led is not None and before is not None and led.topic_id != before.topic_id:
            self._end_replaced(subscription)
            return
        subscription.acls, subscription.led = _acls_of(image), led
        frame = fetch_request(
            wanted.topic,
            wanted.partition,
            subscription.next_offset,
            isolation=wanted.isolation,
            max_bytes=min(max(wanted.max_bytes, 1), PUSH_BYTES_MAX),
            max_wait_ms=MAX_WAIT_MS,
        )
        block = self._pool.take(len(frame))
        if block is None:
            self._fetch_later(subscription)
            return
        block.view[: len(frame)] = frame
        try:
            self._apis.serve(subscription, block, 0, len(frame))
        except Exception as error:
            self._contain(subscription, error)
            return
        if subscription.queue and subscription.queue[0].answer is not None:
            self._outgoing.unsent.add(subscription)

    def _end_replaced(self, subscription: Subscription) -> None:
        """End a subscription whose topic was deleted and made again, or it would go on amidst other records."""
        owner, wanted = subscription.owner, subscription.wanted
        body = error_response(wanted.topic, wanted.partition, UNKNOWN_TOPIC)
        mark = owner.window.sent(len(body))
        self.end(subscription)
        self._outgoing.put(owner, broker_header(Kind.PUSH, mark=mark, subject=wanted.number), body)

    def look(self, sessions: Iterable[GatewaySession]) -> None:
        """End the waits of subscriptions for which a new metadata image says something else."""
        if self._image.version == self._image_version:
            return
        image = self._image.current()
        self._image_version = 0 if image is None else image.version
        acls = _acls_of(image)
        for session in sessions:
            for each in list(session.subscriptions.values()):
                assert isinstance(each, Subscription)
                wanted = each.wanted
                if each.acls is not acls or each.led != led_by(image, wanted.topic, wanted.partition):
                    self._apis.end_waits(each)

    def _fetch_later(self, subscription: Subscription) -> None:
        self._host.cycle.timers.after_ms(FETCH_AGAIN_MS, lambda: self.fetch(subscription))

    def push_all(self, session: GatewaySession) -> None:
        """Go on with all subscriptions of a session that have something, because its window may be open again."""
        for subscription in list(session.subscriptions.values()):
            if session.closed or not self._outgoing.may_send(session):
                return
            assert isinstance(subscription, Subscription)
            if not subscription.closed:
                self.push(subscription)

    def push(self, subscription: Subscription) -> None:
        """Send what the Fetch has answered, as far as the window allows, and ask for the next."""
        try:
            self._push(subscription)
        except (StorageFault, OSError, MalformedFrame) as fault:
            _log.error("%s: %s", subscription, fault)
            self._end_for(subscription.owner, Code.INTERNAL, str(fault))

    def _push(self, subscription: Subscription) -> None:
        owner, number, left = subscription.owner, subscription.wanted.number, TURN_BYTES
        outgoing = self._outgoing
        if not subscription.out:
            if subscription.queue is None or subscription.queue[0].answer is None:
                return
            # Before the look at the rules: the answer may wait for the window for hours.
            if not outgoing.may_send(owner):
                return
            if subscription.acls is not _acls_of(self._image.current()):
                subscription.discard_answer()
                self.fetch(subscription)
                return
            if not subscription.collect():
                self._fetch_later(subscription)  # nothing came in all the time, or it was answered early
                return
        pushed = subscription.pushed
        assert pushed is not None
        while subscription.out:
            if not outgoing.may_send(owner):
                return
            if left <= 0:
                outgoing.unsent.add(subscription)
                return
            frames, size = take_part(subscription.out)
            for frame in frames:
                pushed.pass_on(frame)
            header = broker_header(
                Kind.PUSH,
                flags=MORE if subscription.out else 0,
                mark=owner.window.sent(size),
                subject=number,
            )
            outgoing.put(owner, header, *frames)
            self._cells[BYTES_OUT] += size
            left -= size
        if subscription.closed:
            return
        if pushed.error:
            self.end(subscription)  # the push carried the error, and the client subscribes again
            return
        if pushed.next_offset < 0:
            raise StorageFault(f"no whole batch at offset {subscription.next_offset}")
        subscription.next_offset = pushed.next_offset
        # Behind the others, so that all subscriptions share the window.
        owner.subscriptions[number] = owner.subscriptions.pop(number)
        self.fetch(subscription)


def _acls_of(image: ClusterImage | None) -> tuple[AclBinding, ...]:
    """Return the rules of an image. While they stand, each image has the same object."""
    return () if image is None else image.acls
