"""The page in docs/, the dashboard and the alert rules are what the code says, and name only series that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from appliance.metrics import backup_page, dashboard, families, kafka_page
from appliance.metrics.exposition import Family, Kind
from appliance.metrics.reference import reference_page
from tests.support.promql import EXPRESSION_WORDS, names_and_labels, rules

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
SHARE: Final = dashboard.SHARE


def series() -> dict[str, set[str]]:
    """Name of each series → its labels."""
    found: dict[str, set[str]] = {"up": {"job", "instance"}}
    for family in (*families.ALL, *kafka_page.ALL, *backup_page.ALL):
        labels = set(family.labels)
        if family.kind is Kind.HISTOGRAM:
            found[f"{family.name}_bucket"] = labels | {"le"}
        if family.kind is Kind.SUMMARY:
            found[family.name] = labels | {"quantile"}
        if family.kind in {Kind.HISTOGRAM, Kind.SUMMARY}:
            found[f"{family.name}_count"] = found[f"{family.name}_sum"] = labels
        else:
            found.setdefault(family.name, set()).update(labels)
    return found


def test_page_in_docs_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "run: python -m appliance.metrics.reference docs/metrics.md"
    )


def test_dashboard_in_the_package_is_fresh() -> None:
    assert dashboard.FILE.read_text(encoding="utf-8") == dashboard.text(), (
        "run: python -m appliance.metrics.dashboard"
    )


@pytest.mark.parametrize(
    "family", [*families.ALL, *kafka_page.ALL, *backup_page.ALL], ids=lambda family: family.name
)
def test_a_name_follows_the_rules(family: Family) -> None:
    assert re.fullmatch(r"(appliance|kafka|process)_[a-z0-9_]+", family.name)
    assert (family.kind is Kind.COUNTER) == family.name.endswith("_total")
    assert family.help.endswith(".")
    if family.unit:
        assert family.name.removesuffix("_total").endswith(f"_{family.unit}")
    if family.name.startswith("appliance_"):
        assert family.unit or not re.search(r"_(bytes|seconds|ms)(_total)?\Z", family.name), "it has a unit"


def test_no_name_is_there_twice() -> None:
    names = [family.name for family in (*families.ALL, *kafka_page.ALL, *backup_page.ALL)]
    assert sorted(set(names)) == sorted(names)


def expressions() -> list[str]:
    panels = json.loads(dashboard.FILE.read_text(encoding="utf-8"))["panels"]
    drawn = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [*drawn, *(rule["expr"] for rule in rules(SHARE / "alerts.yml"))]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_series_and_labels_that_there_are(expression: str) -> None:
    known = series()
    used = names_and_labels(expression)
    assert used, "it names no series"
    for name, labels in used:
        assert name in known, f"no series has the name {name}"
        assert labels <= known[name], f"{name} has no labels {labels - known[name]}"


def test_the_check_finds_a_name_that_is_not_there() -> None:
    (found,) = names_and_labels('sum by (le) (rate(appliance_no_such_name{api="Produce"}[5m])) > 0')
    assert found == ("appliance_no_such_name", {"api", "le"})
    assert found[0] not in series()
    assert "rate" in EXPRESSION_WORDS


def test_every_alert_says_what_to_do() -> None:
    found = rules(SHARE / "alerts.yml")
    assert len(found) >= 10
    for rule in found:
        assert rule["summary"], rule
        assert rule["action"], rule
        assert rule["severity"] in {"critical", "warning"}
