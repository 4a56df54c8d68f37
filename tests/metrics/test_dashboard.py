"""The dashboard is one that Grafana reads: its own classes keep every field, and no panel lies on another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.cog.runtime import Runtime, UnknownDataquery
from grafana_foundation_sdk.models.dashboard import Dashboard, RowPanel

from appliance.metrics import dashboard

register_default_plugins()


def read(content: dict[str, Any]) -> Dashboard:
    return Dashboard.from_json(content)


def lost(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Where a value of ours is not in theirs."""
    if isinstance(ours, dict):
        for name, value in ours.items():
            known = isinstance(theirs, dict) and name in theirs
            yield from lost(value, theirs[name], f"{path}.{name}") if known else [f"{path}.{name}"]
    elif isinstance(ours, list):
        same = isinstance(theirs, list) and len(ours) == len(theirs)
        for index, value in enumerate(ours):
            yield from lost(value, theirs[index], f"{path}[{index}]") if same else [f"{path}[{index}]"]
    elif ours != theirs:
        yield path


def round_trip(content: dict[str, Any]) -> list[str]:
    """The fields that Grafana's classes do not know."""
    written = json.loads(json.dumps(read(content), cls=JSONEncoder))
    return list(lost(content, written))


def test_grafana_knows_every_field() -> None:
    assert round_trip(json.loads(dashboard.FILE.read_text(encoding="utf-8"))) == []


def test_grafana_knows_every_kind_of_panel_and_query() -> None:
    panels = read(dashboard.dashboard()).panels or []
    drawn = [each for each in panels if not isinstance(each, RowPanel)]
    assert len(drawn) > 40
    for panel in drawn:
        assert panel.type_val in Runtime().panelcfg_variants, panel.type_val
        assert panel.targets
        for query in panel.targets:
            assert not isinstance(query, UnknownDataquery), panel.title
            assert query.expr.strip()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["query", "legend"])
def test_a_field_that_grafana_does_not_know_is_found(name: str) -> None:
    content = dashboard.dashboard()
    content["panels"][0]["targets"][0][name] = "x"
    assert round_trip(content) == [f".panels[0].targets[0].{name}"]


def test_no_panel_lies_on_another_one() -> None:
    panels = dashboard.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for first, second in combinations([panel["gridPos"] for panel in panels], 2):
        assert (
            first["x"] + first["w"] <= second["x"]
            or second["x"] + second["w"] <= first["x"]
            or first["y"] + first["h"] <= second["y"]
            or second["y"] + second["h"] <= first["y"]
        )
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
