"""Metrics that clients push (KIP-714), as one network process sees them: who may push what, and when.

    client ──GetTelemetrySubscriptions──→ an id, a subscription ──(interval)──→ PushTelemetry ──→ metrics process

A push is answered when it is on its way to the metrics process, which decompresses and reads it: no byte of it is read
here. A client may change its network process with each connection, so a subscription's id follows from what it says and
from the client's id alone. What is kept of a client bounds how often it asks and pushes; a client that this process has
forgotten, or that comes to another one, begins with a fresh interval.

| refused with | when |
|---|---|
| INVALID_REQUEST | a push without a client id; any after the client has said that it ends |
| THROTTLING_QUOTA_EXCEEDED | sooner than the interval allows, but for the first push after a question, and the last |
| UNKNOWN_SUBSCRIPTION_ID | the push is for another subscription: the client asks again, at once if it likes |
| UNSUPPORTED_COMPRESSION_TYPE | as the name says; the client may ask again at once |
| TELEMETRY_TOO_LARGE | more than client.telemetry.max.bytes, compressed |
| INVALID_RECORD | the metrics process does not take it now |

Counters are asked for as sums since the client's start (no delta temporality), so a lost push loses nothing.

Source: Kafka's `ClientMetricsManager.java` and `ClientMetricsInstance.java`, release 4.3.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID, uuid4

from appliance.clock import NS_PER_MS, Clock
from appliance.config.client_metrics import Wanted, wanted_of
from appliance.protocol.apis.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from appliance.protocol.apis.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.crc32c import checksum
from appliance.requests.session import Session

INSTANCES_MAX: Final = 16_384
"""Clients that one network process remembers, about 400 bytes each; the one that was silent longest is forgotten."""
ACCEPTED: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: in Kafka's order, the best first."""
_NONE: Final = 0
_ASK_AGAIN: Final = (int(ErrorCode.UNKNOWN_SUBSCRIPTION_ID), int(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
_RESERVED: Final = UUID(int=1)
"""No client has it, nor zeros. Source: Kafka's `Uuid.RESERVED`."""

Subscriptions = Mapping[str, Mapping[str, str]]
Export = Callable[[Session, UUID, int, int, bytes], bool]
"""(session, client's id, codec, interval in ms, metrics) → whether the metrics process gets the push."""


class _Instance:
    """What is kept of one client. Times are monotonic; 0: never."""

    __slots__ = ("asked_ns", "error", "is_ended", "pushed_ns", "subscription_id", "subscriptions", "wanted")

    def __init__(self) -> None:
        self.asked_ns = self.pushed_ns = 0
        self.error = 0
        self.is_ended = False
        self.subscriptions: Subscriptions | None = None
        self.wanted = Wanted()
        self.subscription_id = 0


class ClientTelemetry:
    """The clients of one network process.

    Args:
        subscriptions: returns those of the current metadata image.
        bytes_max: of a push, compressed.
    """

    __slots__ = (
        "_bytes_max",
        "_clock",
        "_export",
        "_instances",
        "_subscriptions",
        "lost",
        "pushes",
        "refused",
    )

    def __init__(
        self, clock: Clock, *, subscriptions: Callable[[], Subscriptions], bytes_max: int, export: Export
    ) -> None:
        self._clock = clock
        self._subscriptions = subscriptions
        self._bytes_max = bytes_max
        self._export = export
        self._instances: OrderedDict[UUID, _Instance] = OrderedDict()
        self.pushes = self.refused = self.lost = 0

    def subscribe(
        self, session: Session, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        """Answer a question for the subscription."""
        identity = request.client_instance_id or uuid4()
        instance = self._instance(identity, session)
        now_ns = self._clock.monotonic_ns()
        last_ns = max(instance.asked_ns, instance.pushed_ns)
        if last_ns and now_ns - last_ns < instance.wanted.interval_ms * NS_PER_MS:
            if instance.error not in _ASK_AGAIN:
                self.refused += 1
                return GetTelemetrySubscriptionsResponse(int(ErrorCode.THROTTLING_QUOTA_EXCEEDED))
        else:
            instance.asked_ns = now_ns
        instance.error = 0
        wanted = instance.wanted
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=identity,
            subscription_id=instance.subscription_id,
            accepted_compression_types=ACCEPTED,
            push_interval_ms=wanted.interval_ms,
            telemetry_max_bytes=self._bytes_max,
            requested_metrics=wanted.metrics,
        )

    def push(self, session: Session, request: PushTelemetryRequest) -> PushTelemetryResponse:
        """Take a push, or say why not."""
        identity = request.client_instance_id
        if identity is None or identity == _RESERVED:
            self.refused += 1
            return PushTelemetryResponse(int(ErrorCode.INVALID_REQUEST))
        instance = self._instance(identity, session)
        error = self._fault(instance, request)
        instance.error = error
        if error:
            self.refused += 1
            return PushTelemetryResponse(error)
        instance.is_ended = request.terminating
        self.pushes += 1
        if request.metrics and not self._export(
            session, identity, request.compression_type, instance.wanted.interval_ms, request.metrics
        ):
            self.lost += 1
            return PushTelemetryResponse(int(ErrorCode.INVALID_RECORD))
        return PushTelemetryResponse()

    def _fault(self, instance: _Instance, request: PushTelemetryRequest) -> int:
        if instance.is_ended:
            return int(ErrorCode.INVALID_REQUEST)
        now_ns = self._clock.monotonic_ns()
        is_first = instance.asked_ns > instance.pushed_ns or not instance.pushed_ns
        if is_first or now_ns - instance.pushed_ns >= instance.wanted.interval_ms * NS_PER_MS:
            instance.pushed_ns = now_ns
        elif not request.terminating:
            return int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if request.subscription_id != instance.subscription_id:
            return int(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if request.compression_type != _NONE and request.compression_type not in ACCEPTED:
            return int(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if len(request.metrics) > self._bytes_max:
            return int(ErrorCode.TELEMETRY_TOO_LARGE)
        return 0

    def _instance(self, identity: UUID, session: Session) -> _Instance:
        """Return what is kept of a client, with the subscription as it is now."""
        instance = self._instances.get(identity)
        if instance is None:
            instance = self._instances[identity] = _Instance()
            if len(self._instances) > INSTANCES_MAX:
                self._instances.popitem(last=False)
        else:
            self._instances.move_to_end(identity)
        subscriptions = self._subscriptions()
        if instance.subscriptions is not subscriptions:
            instance.subscriptions = subscriptions
            instance.wanted = wanted_of(subscriptions.values(), facts_of(session, identity))
            instance.subscription_id = subscription_id(instance.wanted, identity)
        return instance

    def statistics(self) -> dict[str, int]:
        """Clients that are remembered, pushes, what was refused, and pushes that the metrics process did not take."""
        return {
            "clients": len(self._instances),
            "pushes": self.pushes,
            "refused": self.refused,
            "lost": self.lost,
        }


def facts_of(session: Session, identity: UUID) -> Mapping[str, str]:
    """Return what the patterns of a subscription look at (`config.client_metrics.CLIENT_FACTS`)."""
    return {
        "client_id": session.client_id or "",
        "client_instance_id": kafka_text(identity),
        "client_software_name": session.software_name,
        "client_software_version": session.software_version,
        "client_source_address": session.host,
        "client_source_port": str(session.peer_port),
    }


def kafka_text(identity: UUID) -> str:
    """Return an id as Kafka prints it: base64 without padding."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(identity.bytes).rstrip(b"=").decode("ascii")


def subscription_id(wanted: Wanted, identity: UUID) -> int:
    """Return a number that is another one when the subscription is, an int32."""
    said = f"{','.join(wanted.metrics)} {wanted.interval_ms}".encode()
    number = (checksum(said) ^ hash_of(identity)) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


def hash_of(identity: UUID) -> int:
    """Return the same 32 bits in every process."""
    return checksum(identity.bytes)
