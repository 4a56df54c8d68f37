r"""Series as text: Prometheus 0.0.4 and OpenMetrics 1.0.

    # HELP appliance_requests_total Requests that clients have sent.
    # TYPE appliance_requests_total counter
    appliance_requests_total{api="Produce"} 17

OpenMetrics names a counter's family without `_total`, adds the unit, and ends with `# EOF`. In label values `\`, `"`
and line feeds are escaped. Client libraries exist; docs/metrics.md says why the broker does not collect with one.

Source: prometheus.io/docs/instrumenting/exposition_formats; OpenMetrics 1.0.0 (RFC draft).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_TOTAL: Final = "_total"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Value = int | float


class Kind(StrEnum):
    """Types of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Family:
    """Series of one name. A counter's name ends with `_total`; a name with a unit ends with the unit before that."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""


class FamilyWriter(Protocol):
    """Where families are written to: a page, or a request to a collector. See `Page` for the methods."""

    def begin(self, family: Family) -> None:
        """Begin a family; its samples follow. Each family comes once."""

    def add(self, value: Value, *labels: str) -> None:
        """Write a sample of the family that `begin` named last; label values in the order of its labels."""

    def gauge(self, family: Family, samples: Iterable[tuple[Value, Sequence[str]]]) -> None:
        """Write a family with all of its samples."""

    def histogram(
        self, labels: Sequence[str], *, bounds: Sequence[str], counts: Sequence[int], total: Value
    ) -> None:
        """Write a histogram of the family that `begin` named last."""


_NONE: Final = Family("", Kind.GAUGE, "")


def accepts_openmetrics(accept: str) -> bool:
    """Return whether a header Accept prefers OpenMetrics 1.0 to text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for each in accept.split(",")[:32]:
        kind, *parameters = (part.strip().lower() for part in each.split(";"))
        options = dict(parameter.partition("=")[::2] for parameter in parameters)
        if kind not in weights or (
            kind.startswith("app") and options.get("version", "1.0.0") not in {"1.0.0", "0.0.1"}
        ):
            continue
        try:
            weight = float(options.get("q", "1"))
        except ValueError:
            weight = 0.0
        weights[kind] = max(weights[kind], weight)
    return weights["application/openmetrics-text"] > 0 and (
        weights["application/openmetrics-text"] >= weights["text/plain"]
    )


class Page:
    """A page that is written family by family.

    Args:
        openmetrics: whether it is in OpenMetrics.
    """

    __slots__ = ("_family", "_is_openmetrics", "_lines", "_prefix", "_written")

    def __init__(self, *, openmetrics: bool) -> None:
        self._is_openmetrics = openmetrics
        self._lines: list[str] = []
        self._family = _NONE
        self._written: set[str] = set()
        self._prefix: tuple[str, ...] = ()

    def begin(self, family: Family) -> None:
        """Write the head of a family; its samples follow. Each family comes once."""
        name = family.name
        assert name not in self._written, f"{name} is written twice"
        self._written.add(name)
        self._family = family
        if self._is_openmetrics and family.kind is Kind.COUNTER:
            name = name.removesuffix(_TOTAL)
        self._lines.append(f"# HELP {name} {family.help.translate(_HELP_ESCAPES)}")
        self._lines.append(f"# TYPE {name} {family.kind}")
        if self._is_openmetrics and family.unit:
            self._lines.append(f"# UNIT {name} {family.unit}")
        # Up to a label's value: `name{first="`, `",second="`; what is written most often is made once.
        labels = family.labels
        self._prefix = tuple(
            f'{family.name}{{{label}="' if not index else f'",{label}="' for index, label in enumerate(labels)
        ) or (family.name,)

    def add(self, value: Value, *labels: str) -> None:
        """Write a sample of the family that `begin` named last; label values in the order of its labels."""
        prefix = self._prefix
        match len(labels):
            case 0:
                self._lines.append(f"{prefix[0]} {value}")
            case 1:
                self._lines.append(f'{prefix[0]}{escaped(labels[0])}"}} {value}')
            case _:
                pairs = zip(prefix, labels, strict=True)
                text = "".join([f"{head}{escaped(label)}" for head, label in pairs])
                self._lines.append(f'{text}"}} {value}')

    def add_sum(self, value: Value) -> None:
        """Write a sample without labels of a family that has some: with Kafka's exporters, the sum of all topics."""
        self._lines.append(f"{self._family.name} {value}")

    def gauge(self, family: Family, samples: Iterable[tuple[Value, Sequence[str]]]) -> None:
        """Write a family with all of its samples."""
        self.begin(family)
        if len(family.labels) == 1:
            # Most samples of a page: those of topics.
            head = self._prefix[0]
            self._lines += [f'{head}{escaped(label)}"}} {value}' for value, (label,) in samples]
            return
        if len(family.labels) == 2:
            # The next most: those of groups and their topics.
            head, between = self._prefix
            self._lines += [
                f'{head}{escaped(first)}{between}{escaped(second)}"}} {value}'
                for value, (first, second) in samples
            ]
            return
        for value, labels in samples:
            self.add(value, *labels)

    def histogram(
        self, labels: Sequence[str], *, bounds: Sequence[str], counts: Sequence[int], total: Value
    ) -> None:
        """Write a histogram of the family that `begin` named last.

        Args:
            labels: label values in the order of the family's labels.
            bounds: upper bounds of the buckets.
            counts: how many observations are in each bucket, and last of them above the last bound.
            total: the sum of all observations.
        """
        name, pairs = self._family.name, self._pairs(labels)
        below = 0
        for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
            below += count
            self._lines.append(f'{name}_bucket{{{pairs}le="{bound}"}} {below}')
        self._count_and_sum(pairs, below, total)

    def summary(
        self, labels: Sequence[str], *, quantiles: Sequence[tuple[str, Value]], count: int, total: Value
    ) -> None:
        """Write a summary of the family that `begin` named last: quantiles with values, and count and sum."""
        name, pairs = self._family.name, self._pairs(labels)
        for quantile, value in quantiles:
            self._lines.append(f'{name}{{{pairs}quantile="{quantile}"}} {value}')
        self._count_and_sum(pairs, count, total)

    def _pairs(self, labels: Sequence[str]) -> str:
        """Return the labels of a sample, each with a comma behind it."""
        named = zip(self._family.labels, labels, strict=True)
        return "".join([f'{label}="{escaped(value)}",' for label, value in named])

    def _count_and_sum(self, pairs: str, count: int, total: Value) -> None:
        name, closed = self._family.name, f"{{{pairs[:-1]}}}" if pairs else ""
        self._lines.append(f"{name}_count{closed} {count}")
        self._lines.append(f"{name}_sum{closed} {total}")

    def text(self) -> bytes:
        """Return the whole page."""
        end = "\n# EOF\n" if self._is_openmetrics else "\n"
        return ("\n".join(self._lines) + end).encode("utf-8", "replace")


def escaped(value: str) -> str:
    """Return a label's value as it stands between quotation marks."""
    if '"' in value or "\\" in value or "\n" in value:
        return value.translate(_ESCAPES)
    return value
