"""Metrics that clients push to a network process, where they may: wires `requests.client_telemetry`."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from appliance.channels.telemetry_channel import Pushed, TelemetryLink
from appliance.process.agent import AgentProcess
from appliance.requests.client_telemetry import ClientTelemetry, kafka_text
from appliance.requests.session import Session


def telemetry_of(process: AgentProcess, link: TelemetryLink) -> ClientTelemetry:
    """Return the clients of this network process. What they push goes to the metrics process over `link`."""
    image = process.attachment.image

    def export(session: Session, identity: UUID, codec: int, interval_ms: int, metrics: bytes) -> bool:
        return link.send(
            Pushed(
                kafka_text(identity),
                session.client_id or "",
                f"{session.software_name} {session.software_version}".strip(),
                codec,
                interval_ms,
                metrics,
            )
        )

    def subscriptions() -> Mapping[str, Mapping[str, str]]:
        current = image.current()
        return {} if current is None else current.client_metrics

    return ClientTelemetry(
        process.clock,
        subscriptions=subscriptions,
        bytes_max=process.settings.metrics.client_telemetry_max_bytes,
        export=export,
    )
