"""The pages of the metrics process, as a scraper reads them."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

OPENMETRICS: Final = "application/openmetrics-text;version=1.0.0"
Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Scraped:
    """One page: its families, and its samples by name and labels."""

    families: tuple[Metric, ...]
    samples: Mapping[Key, float]
    size_bytes: int

    def value(self, name: str, **labels: str) -> float:
        """The value of one series. KeyError where there is none."""
        return self.samples[name, frozenset(labels.items())]

    def total(self, name: str) -> float:
        """The sum of all series of a name."""
        return sum(value for (each, _), value in self.samples.items() if each == name)

    def counters(self) -> dict[Key, float]:
        """Every series that must never fall."""
        kinds = ("counter", "histogram")
        names = {sample.name for family in self.families if family.type in kinds for sample in family.samples}
        return {key: value for key, value in self.samples.items() if key[0] in names}


def get(port: int, path: str, **headers: str) -> tuple[int, str, bytes]:
    """Status, content type and body of one path."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type") or "", response.read()
    finally:
        connection.close()


def scrape(port: int, path: str = "/metrics", *, openmetrics: bool = False) -> Scraped:
    """Read and parse a page; AssertionError where it is none."""
    status, kind, body = get(port, path, **({"Accept": OPENMETRICS} if openmetrics else {}))
    assert status == 200, body
    assert kind.startswith("application/openmetrics-text" if openmetrics else "text/plain; version=0.0.4")
    families = tuple((parse_openmetrics if openmetrics else parse_text)(body.decode()))
    samples: dict[Key, float] = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"twice on the page: {key}"
            samples[key] = sample.value
    return Scraped(families, samples, len(body))
