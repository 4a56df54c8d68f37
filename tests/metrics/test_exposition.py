"""Pages as the parsers of prometheus_client read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from appliance.metrics.exposition import Family, Kind, Page, accepts_openmetrics

COUNTER = Family(
    "a_bytes_total", Kind.COUNTER, 'Help with \\ and "quotes"\nand lines.', ("topic", "b"), "bytes"
)
HISTOGRAM = Family("h_seconds", Kind.HISTOGRAM, "Times.", ("api",), "seconds")
SUMMARY = Family("s", Kind.SUMMARY, "Times.", ("api",))


def parse(page: Page, *, openmetrics: bool) -> list[Metric]:
    return list((parse_openmetrics if openmetrics else parse_text)(page.text().decode()))


@pytest.mark.parametrize("openmetrics", [False, True])
@given(
    labels=st.lists(
        st.tuples(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))),
        unique=True,
        max_size=4,
    )
)
def test_any_label_comes_back_as_it_was(openmetrics: bool, labels: list[tuple[str, str]]) -> None:
    page = Page(openmetrics=openmetrics)
    page.gauge(COUNTER, [(17, pair) for pair in labels])
    (family,) = parse(page, openmetrics=openmetrics)
    assert family.type == "counter"
    found = [(sample.labels["topic"], sample.labels["b"]) for sample in family.samples]
    assert found == labels
    assert {sample.name for sample in family.samples} <= {"a_bytes_total"}


def test_a_lone_surrogate_does_not_break_the_page() -> None:
    page = Page(openmetrics=True)
    page.gauge(COUNTER, [(1, ("\ud800", "x"))])
    page.text().decode()


@pytest.mark.parametrize("openmetrics", [False, True])
def test_histograms_and_summaries(openmetrics: bool) -> None:
    page = Page(openmetrics=openmetrics)
    page.begin(HISTOGRAM)
    page.histogram(("Produce",), bounds=("0.1", "1.0"), counts=(1, 2, 3), total=4.5)
    page.begin(SUMMARY)
    page.summary(("Fetch",), quantiles=(("0.5", 1.5),), count=6, total=9)
    histogram, summary = parse(page, openmetrics=openmetrics)
    assert [sample.value for sample in histogram.samples] == [1, 3, 6, 6, 4.5]
    assert histogram.samples[2].labels == {"api": "Produce", "le": "+Inf"}
    assert [sample.value for sample in summary.samples] == [1.5, 6, 9]


def test_openmetrics_has_units_and_an_end() -> None:
    page = Page(openmetrics=True)
    page.gauge(COUNTER, [])
    lines = page.text().decode().splitlines()
    assert lines[1:] == ["# TYPE a_bytes counter", "# UNIT a_bytes bytes", "# EOF"]


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", True),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=zero", False),
        (";;,,;=", False),
    ],
)
def test_the_format_that_is_preferred(accept: str, wanted: bool) -> None:
    assert accepts_openmetrics(accept) is wanted
