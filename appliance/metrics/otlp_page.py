"""The families of the page `/metrics` as an OTLP request: the JSON of `ExportMetricsServiceRequest`.

    counter    sum, monotonic and cumulative, without `_total` in its name
    gauge      gauge
    histogram  histogram, cumulative, with the bounds of the page

Units are UCUM's, as OpenTelemetry wants them: `seconds` are `s`, `bytes` are `By`. 64-bit numbers are text.

Source: opentelemetry-proto, metrics.proto; OpenTelemetry's "Prometheus and OpenMetrics Compatibility".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from appliance.metrics.exposition import Family, Kind, Value

_CUMULATIVE: Final = 2
_UNITS: Final = {"seconds": "s", "bytes": "By"}


class OtlpPage:
    """Has the methods of `exposition.Page` that the writers of the page `/metrics` call.

    Args:
        started_ns: when the counters began, in ns since 1970.
        now_ns: when they were read.
    """

    def __init__(self, *, started_ns: int, now_ns: int) -> None:
        self._times = {"startTimeUnixNano": str(started_ns), "timeUnixNano": str(now_ns)}
        self._metrics: list[dict[str, Any]] = []
        self._points: list[dict[str, Any]] = []
        self._labels: tuple[str, ...] = ()

    def begin(self, family: Family) -> None:
        """Begin a family; its samples follow."""
        self._points = []
        self._labels = family.labels
        data: dict[str, Any] = {"dataPoints": self._points}
        if family.kind is Kind.COUNTER:
            data |= {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
        elif family.kind is Kind.HISTOGRAM:
            data["aggregationTemporality"] = _CUMULATIVE
        kind = {Kind.COUNTER: "sum", Kind.HISTOGRAM: "histogram"}.get(family.kind, "gauge")
        metric: dict[str, Any] = {
            "name": family.name.removesuffix("_total"),
            "description": family.help,
            kind: data,
        }
        if family.unit:
            metric["unit"] = _UNITS.get(family.unit, family.unit)
        self._metrics.append(metric)

    def add(self, value: Value, *labels: str) -> None:
        """Add a sample of the family that `begin` named last."""
        self._points.append({**self._point(labels), **_number(value)})

    def gauge(self, family: Family, samples: Iterable[tuple[Value, Sequence[str]]]) -> None:
        """Add a family with all of its samples."""
        self.begin(family)
        for value, labels in samples:
            self.add(value, *labels)

    def histogram(
        self, labels: Sequence[str], *, bounds: Sequence[str], counts: Sequence[int], total: Value
    ) -> None:
        """Add a histogram of the family that `begin` named last; the arguments are those of `Page.histogram`."""
        self._points.append(
            {
                **self._point(labels),
                "count": str(sum(counts)),
                "sum": float(total),
                "explicitBounds": [float(bound) for bound in bounds],
                "bucketCounts": [str(count) for count in counts],
            }
        )

    def _point(self, labels: Sequence[str]) -> dict[str, Any]:
        named = zip(self._labels, labels, strict=True)
        return {**self._times, "attributes": [_text(label, value) for label, value in named]}

    def request(self, *, instance: str, version: str) -> bytes:
        """Return the whole request. A family without samples is left out.

        Args:
            instance: the cluster id.
            version: of the appliance.
        """
        metrics = [each for each in self._metrics if any(_points_of(each))]
        attributes = [
            _text("service.name", "appliance"),
            _text("service.instance.id", instance),
            _text("service.version", version),
        ]
        scope = {"scope": {"name": "appliance.metrics"}, "metrics": metrics}
        resource = {"resource": {"attributes": attributes}, "scopeMetrics": [scope]}
        return msgspec.json.encode({"resourceMetrics": [resource]})


def _points_of(metric: dict[str, Any]) -> Iterable[Any]:
    for kind in ("sum", "histogram", "gauge"):
        if kind in metric:
            yield from metric[kind]["dataPoints"]


def _number(value: Value) -> dict[str, Any]:
    return {"asInt": str(value)} if isinstance(value, int) else {"asDouble": value}


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}
