"""Who may push metrics, what, and when: as `ClientMetricsManager` of Apache Kafka 4.3 decides."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.protocol.apis.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from appliance.protocol.apis.push_telemetry import PushTelemetryRequest
from appliance.protocol.errors import ErrorCode
from appliance.requests import client_telemetry
from appliance.requests.client_telemetry import ACCEPTED, ClientTelemetry, Subscriptions
from appliance.requests.session import Session

INTERVAL_MS: Final = 5000
BYTES_MAX: Final = 1000
ZSTD: Final = 4
TOO_EARLY: Final = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
OTHER: Final = int(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)


class Bench:
    """One network process, and a client."""

    def __init__(self) -> None:
        self.clock = ManualClock(monotonic_ns=10**12)
        self.subscriptions: Subscriptions = {"all": {"metrics": "*", "interval.ms": str(INTERVAL_MS)}}
        self.exported: list[tuple[UUID, bytes, int]] = []
        self.takes = True
        self.telemetry = self.process()
        self.session = Session(
            connection_id=1, number=1, slot=0, listener="PLAINTEXT", peer_host="h", peer_port=1, now_ns=0
        )
        self.session.client_id = "orders"

    def process(self) -> ClientTelemetry:
        return ClientTelemetry(
            self.clock, subscriptions=lambda: self.subscriptions, bytes_max=BYTES_MAX, export=self.export
        )

    def export(self, session: Session, identity: UUID, codec: int, interval_ms: int, metrics: bytes) -> bool:
        assert session is self.session
        if self.takes:
            self.exported.append((identity, metrics, interval_ms))
        return self.takes

    def ask(self, identity: UUID | None = None) -> GetTelemetrySubscriptionsResponse:
        return self.telemetry.subscribe(self.session, GetTelemetrySubscriptionsRequest(identity))

    def push(
        self,
        asked: GetTelemetrySubscriptionsResponse,
        metrics: bytes = b"m",
        *,
        subscription: int | None = None,
        terminating: bool = False,
        codec: int = ZSTD,
    ) -> int:
        wanted = asked.subscription_id if subscription is None else subscription
        request = PushTelemetryRequest(asked.client_instance_id, wanted, terminating, codec, metrics)
        return self.telemetry.push(self.session, request).error_code


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_client_gets_an_id_and_what_it_is_to_push(bench: Bench) -> None:
    asked = bench.ask()
    assert asked.client_instance_id not in (None, UUID(int=0))
    assert (asked.error_code, asked.requested_metrics, asked.push_interval_ms) == (0, ("*",), INTERVAL_MS)
    assert asked.accepted_compression_types == ACCEPTED
    assert (asked.telemetry_max_bytes, asked.delta_temporality) == (BYTES_MAX, False)
    assert -(2**31) <= asked.subscription_id < 2**31


def test_pushes_come_in_their_interval(bench: Bench) -> None:
    asked = bench.ask()
    assert bench.push(asked, b"1") == 0, "the first push after the question comes at once"
    bench.clock.advance(INTERVAL_MS - 1)
    assert bench.push(asked, b"2") == TOO_EARLY
    bench.clock.advance(1)
    assert bench.push(asked, b"3") == 0
    assert [metrics for _, metrics, _ in bench.exported] == [b"1", b"3"]
    assert {interval for _, _, interval in bench.exported} == {INTERVAL_MS}


def test_a_client_that_ends_pushes_once_more_at_any_time(bench: Bench) -> None:
    asked = bench.ask()
    assert bench.push(asked) == 0
    assert bench.push(asked, b"last", terminating=True) == 0
    bench.clock.advance(INTERVAL_MS)
    assert bench.push(asked) == ErrorCode.INVALID_REQUEST
    assert bench.exported[-1][1] == b"last"


def test_questions_come_in_the_interval_too(bench: Bench) -> None:
    asked = bench.ask()
    assert bench.ask(asked.client_instance_id).error_code == TOO_EARLY
    bench.clock.advance(INTERVAL_MS)
    assert bench.ask(asked.client_instance_id).error_code == 0


def test_after_another_subscription_the_client_asks_at_once(bench: Bench) -> None:
    asked = bench.ask()
    assert bench.push(asked) == 0
    bench.subscriptions = {"some": {"metrics": "a", "interval.ms": str(INTERVAL_MS)}}
    bench.clock.advance(INTERVAL_MS)
    assert bench.push(asked) == OTHER
    again = bench.ask(asked.client_instance_id)
    assert (again.error_code, again.requested_metrics) == (0, ("a",))
    assert again.subscription_id != asked.subscription_id


def test_an_unknown_codec_lets_the_client_ask_at_once(bench: Bench) -> None:
    asked = bench.ask()
    assert bench.push(asked, codec=9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert bench.ask(asked.client_instance_id).error_code == 0
    assert bench.push(asked, codec=0) == TOO_EARLY


def test_what_is_refused_goes_nowhere(bench: Bench) -> None:
    asked = bench.ask()
    for identity in (None, UUID(int=1)):
        request = PushTelemetryRequest(identity, asked.subscription_id, metrics=b"m")
        assert bench.telemetry.push(bench.session, request).error_code == ErrorCode.INVALID_REQUEST
    assert bench.push(asked, bytes(BYTES_MAX + 1)) == ErrorCode.TELEMETRY_TOO_LARGE
    bench.clock.advance(INTERVAL_MS)
    bench.takes = False
    assert bench.push(asked) == ErrorCode.INVALID_RECORD
    assert bench.exported == []
    assert bench.telemetry.statistics() == {"clients": 1, "pushes": 1, "refused": 3, "lost": 1}


def test_another_network_process_knows_the_subscription(bench: Bench) -> None:
    asked = bench.ask()
    bench.telemetry = bench.process()
    assert bench.push(asked) == 0
    assert bench.push(asked) == TOO_EARLY


def test_without_a_subscription_a_client_pushes_nothing(bench: Bench) -> None:
    bench.subscriptions = {"theirs": {"metrics": "*", "match": "client_id=other"}}
    asked = bench.ask()
    assert (asked.error_code, asked.requested_metrics) == (0, ())


def test_the_clients_that_are_remembered_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 3)
    first = bench.ask()
    for _ in range(3):
        bench.ask()
    assert bench.telemetry.statistics()["clients"] == 3
    assert bench.ask(first.client_instance_id).error_code == 0, "it was forgotten"
