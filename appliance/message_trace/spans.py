"""Events as OpenTelemetry spans: the JSON of an OTLP/HTTP request (`ExportTraceServiceRequest`).

Ids are hex digits and 64-bit numbers are text, as OTLP's JSON encoding wants it. A span id is made from what the event
says, so an event that is sent twice is one span. Attributes are those of OpenTelemetry's messaging conventions.

| step | span | kind | from | to |
|---|---|---|---|---|
| appended | `publish TOPIC` | PRODUCER | the record's timestamp | the append |
| replicated, committed, aborted, retried, dead | `STEP TOPIC` | INTERNAL | the append | the step |
| fetched | `receive TOPIC` | CONSUMER | the append | the fetch |
| consumed | `settle TOPIC` | CONSUMER | the append | the commit of the group |
| processed | `process TOPIC` | CONSUMER | the append | the end of processing |

`produced` is the begin of `publish`, and no span of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

from appliance.message_trace.event import Event, Step

_INTERNAL, _PRODUCER, _CONSUMER = 1, 4, 5
_NAMES: Final = {
    Step.APPENDED: ("publish", _PRODUCER, "send"),
    Step.FETCHED: ("receive", _CONSUMER, "receive"),
    Step.CONSUMED: ("settle", _CONSUMER, "settle"),
    Step.PROCESSED: ("process", _CONSUMER, "process"),
}
_NS_PER_MS: Final = 1_000_000


def request_of(events: Iterable[Event], *, version: str) -> dict[str, Any]:
    """Return the request for these events; `version`: of the appliance."""
    return {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": [
                        _text("service.name", "appliance"),
                        _text("service.version", version),
                    ]
                },
                "scopeSpans": [
                    {
                        "scope": {"name": "appliance.message_trace"},
                        "spans": [_span(event) for event in events if event.step != Step.PRODUCED],
                    }
                ],
            }
        ]
    }


def span_id(event: Event) -> str:
    """Return the span's id, 16 hex digits."""
    who = (event.trace, event.topic, event.partition, event.offset, event.step, event.client, event.group)
    return sha256("\0".join(map(str, who)).encode()).hexdigest()[:16]


def _span(event: Event) -> dict[str, Any]:
    name, kind, operation = _NAMES.get(Step(event.step), (event.step, _INTERNAL, ""))
    end_ms = event.at_ms if event.at_ms >= 0 else max(event.since_ms, 0)
    begin_ms = min(event.since_ms, end_ms) if event.since_ms >= 0 else end_ms
    attributes = [
        _text("messaging.system", "kafka"),
        _text("messaging.destination.name", event.topic),
        _text("messaging.destination.partition.id", str(event.partition)),
        {"key": "messaging.kafka.offset", "value": {"intValue": str(event.offset)}},
        _text("messaging.operation.name", event.step),
    ]
    attributes += [
        _text(key, value)
        for key, value in (
            ("messaging.operation.type", operation),
            ("messaging.client.id", event.client),
            ("messaging.consumer.group.name", event.group),
            ("enduser.id", event.principal),
            ("appliance.detail", event.detail),
        )
        if value
    ]
    return {
        "traceId": event.trace,
        "spanId": span_id(event),
        **({"parentSpanId": event.parent} if event.parent else {}),
        "name": f"{name} {event.topic}",
        "kind": kind,
        "startTimeUnixNano": str(begin_ms * _NS_PER_MS),
        "endTimeUnixNano": str(end_ms * _NS_PER_MS),
        "attributes": attributes,
    }


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}
