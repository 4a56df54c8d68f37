"""What clients have pushed of their metrics (KIP-714): read, bounded, and kept until the next push.

    push ─decompress (PLAIN_BYTES_MAX)─→ OTLP's MetricsData ─read (POINTS_MAX)─→ series of one client ─→ page

A client decides about every byte here, so everything is bounded: bytes before and after decompression, series of one
client and of all, characters of a name. The next push of a client replaces its series. A client that is silent for
three intervals, at least a minute, is forgotten, as in Kafka.

Decompression and reading cost time on this process's only thread. After each push it reads no other for nine times as
long as that one took (`pause_ns`), so pushes take a tenth of a core at most; what clients push beyond is refused where
they push it (`channels.telemetry_channel`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from appliance.channels.telemetry_channel import Pushed
from appliance.clock import NS_PER_MS, Clock
from appliance.errors import ApplianceError
from appliance.protocol.records.compression import decompress

PLAIN_BYTES_MAX: Final = 4 << 20
"""Of a push, decompressed. A Java client with a hundred partitions pushes some 100 KiB."""
POINTS_MAX: Final = 1000
"""Series of one client."""
CHARACTERS_MAX: Final = 200
"""Of a name of a metric, and of all of its attributes."""
CLIENTS_MAX: Final = 16_384
SILENT_MIN_MS: Final = 60_000
SILENT_INTERVALS: Final = 3
PAUSE_FACTOR: Final = 9

Labels = tuple[str, str, str, str, str]
"""Metric, client id, client's instance id, software, attributes."""


class _Client:
    __slots__ = ("names", "series", "until_ns")

    def __init__(
        self, names: tuple[str, str, str], series: dict[tuple[str, str], float], until_ns: int
    ) -> None:
        self.names = names
        self.series = series
        self.until_ns = until_ns


class ClientMetrics:
    """The series of all clients.

    Args:
        series_max: of all clients together.
    """

    def __init__(self, clock: Clock, *, series_max: int) -> None:
        self._clock = clock
        self._series_max = series_max
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._count = 0
        self._pause_until_ns = 0
        self.read = self.unreadable = self.dropped_series = 0

    def __len__(self) -> int:
        """How many clients have series."""
        return len(self._clients)

    @property
    def pause_ms(self) -> int:
        """How long no push is read, 0 if one may be."""
        left_ns = self._pause_until_ns - self._clock.monotonic_ns()
        return max(0, -(-left_ns // NS_PER_MS))

    def take(self, pushed: Pushed) -> None:
        """Read a push, and let it replace the client's series. One that cannot be read changes nothing."""
        began_ns = self._clock.monotonic_ns()
        try:
            series, left_out = read_points(plain(pushed))
        except (ApplianceError, ValueError):
            self.unreadable += 1
        else:
            self.read += 1
            self._keep(pushed, series, left_out, began_ns)
        ended_ns = self._clock.monotonic_ns()
        self._pause_until_ns = ended_ns + PAUSE_FACTOR * (ended_ns - began_ns)

    def _keep(self, pushed: Pushed, series: dict[tuple[str, str], float], left_out: int, now_ns: int) -> None:
        before = self._clients.pop(pushed.instance, None)
        if before is not None:
            self._count -= len(before.series)
        room = self._series_max - self._count
        if len(series) > room:
            left_out += len(series) - room
            series = dict(list(series.items())[:room])
        self.dropped_series += left_out
        silent_ms = max(SILENT_MIN_MS, SILENT_INTERVALS * pushed.interval_ms)
        names = (pushed.client_id[:CHARACTERS_MAX], pushed.instance, pushed.software[:CHARACTERS_MAX])
        self._clients[pushed.instance] = _Client(names, series, now_ns + silent_ms * NS_PER_MS)
        self._count += len(series)
        if len(self._clients) > CLIENTS_MAX:
            self._forget(next(iter(self._clients)))

    def _forget(self, instance: str) -> None:
        self._count -= len(self._clients.pop(instance).series)

    def expire(self) -> None:
        """Forget the clients that are silent."""
        now_ns = self._clock.monotonic_ns()
        for instance in [name for name, client in self._clients.items() if client.until_ns <= now_ns]:
            self._forget(instance)

    def samples(self) -> Iterator[tuple[float, Labels]]:
        """Yield every series."""
        for client in self._clients.values():
            client_id, instance, software = client.names
            for (metric, attributes), value in client.series.items():
                yield value, (metric, client_id, instance, software, attributes)


def plain(pushed: Pushed) -> bytes:
    """Return the metrics of a push without compression.

    Raises:
        ApplianceError: they cannot be decompressed, or have more than PLAIN_BYTES_MAX.
        ValueError: they have more without compression.
    """
    if pushed.codec:
        return bytes(decompress(pushed.codec, pushed.metrics, PLAIN_BYTES_MAX))
    if len(pushed.metrics) > PLAIN_BYTES_MAX:
        raise ValueError(f"{len(pushed.metrics)} bytes")
    return pushed.metrics


def read_points(data: bytes) -> tuple[dict[tuple[str, str], float], int]:
    """Return (metric, attributes) → value of OTLP's MetricsData, and how many points were left out.

    Gauges and sums are taken as they are, of a histogram its count and its sum. Points beyond POINTS_MAX, and other
    kinds, are left out.

    Raises:
        ValueError: the bytes are no MetricsData.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    try:
        parsed = MetricsData.FromString(data)
    except DecodeError as error:
        raise ValueError("no MetricsData of OTLP") from error
    found: dict[tuple[str, str], float] = {}
    left_out = 0
    for resource in parsed.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for name, attributes, value in _points(metric):
                    if len(found) < POINTS_MAX and math.isfinite(value):
                        found[name[:CHARACTERS_MAX], _text(attributes)] = value
                    else:
                        left_out += 1
    return found, left_out


def _points(metric: Any) -> Iterator[tuple[str, Sequence[Any], float]]:
    kind = metric.WhichOneof("data")
    if kind in {"gauge", "sum"}:
        for point in getattr(metric, kind).data_points:
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            yield metric.name, point.attributes, float(value)
    elif kind == "histogram":
        for point in metric.histogram.data_points:
            yield f"{metric.name}.count", point.attributes, float(point.count)
            yield f"{metric.name}.sum", point.attributes, float(point.sum)


def _text(attributes: Iterable[Any]) -> str:
    """Return `name=value,…` in order of the names."""
    pairs: list[str] = []
    for each in attributes:
        kind = each.value.WhichOneof("value")
        if kind in {"string_value", "bool_value", "int_value", "double_value"}:
            pairs.append(f"{each.key}={getattr(each.value, kind)}")
    return ",".join(sorted(pairs))[:CHARACTERS_MAX]
