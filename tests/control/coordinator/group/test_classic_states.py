"""The table of states, held against Kafka's and against what the README shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.control.coordinator import group as room
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_state import STATES, ClassicState, table_text
from appliance.errors import ApplianceDefect

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = ClassicState

# Kafka's ClassicGroupState: from which states each may be entered.
ENTERED_FROM = {
    EMPTY: {PREPARING},
    PREPARING: {STABLE, COMPLETING, EMPTY},
    COMPLETING: {PREPARING},
    STABLE: {COMPLETING},
    DEAD: {EMPTY, PREPARING, COMPLETING, STABLE, DEAD},
}


@pytest.mark.parametrize("source", ClassicState, ids=lambda state: state.value)
@pytest.mark.parametrize("target", ClassicState, ids=lambda state: state.value)
def test_a_group_goes_where_kafka_lets_it_go_and_nowhere_else(
    source: ClassicState, target: ClassicState
) -> None:
    group = ClassicGroup("g", 0)
    group.state = source
    if source in ENTERED_FROM[target]:
        group.move_to(target, 7)
        assert (group.state, group.previous_state, group.state_timestamp_ms) == (target, source, 7)
    else:
        with pytest.raises(ApplianceDefect):
            group.move_to(target, 7)
        assert group.state is source


def test_every_state_has_a_row() -> None:
    assert set(STATES) == set(ClassicState)


def test_readme_shows_the_table_that_the_code_reads() -> None:
    assert room.__file__ is not None
    assert table_text() in (Path(room.__file__).parent / "README.md").read_text(encoding="utf-8")
