"""The life of a process is written once, in `appliance/process`: each pattern of it stands in one file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

APPLIANCE = Path(__file__).parents[2] / "appliance"
SKELETON = "process/agent.py"

ONCE = {
    "the supervisor is gone; stopping": SKELETON,
    r"case PeerUp\(": SKELETON,
    r"case PeerDown\(": SKELETON,
    r"case Stop\(": SKELETON,
    r"\bDutyCycle\(\n? *[a-z]": SKELETON,
    r"\bControllerLink\(": SKELETON,
    r"send\(Ready\(\)\)": SKELETON,
    r"\bNS_PER_MS\b.* = 1_000_000": "clock.py",
}
"""Pattern → the only file that has it."""


@pytest.mark.parametrize("pattern", ONCE)
def test_a_part_of_the_life_of_a_process_is_written_once(pattern: str) -> None:
    found = {
        str(path.relative_to(APPLIANCE)): len(re.findall(pattern, path.read_text(encoding="utf-8")))
        for path in sorted(APPLIANCE.rglob("*.py"))
        if not path.name.endswith("_events.py")  # the table of what is logged
        if re.search(pattern, path.read_text(encoding="utf-8"))
    }
    assert found == {ONCE[pattern]: 1}


def test_every_entry_point_makes_a_skeleton() -> None:
    from appliance.control.supervisor.entry_points import ENTRY_POINTS

    for entry_point in ENTRY_POINTS.values():
        module, _, _ = entry_point.removeprefix("appliance.").partition(":")
        source = (APPLIANCE / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        assert "run_agent(child, " in source or "AgentProcess(child)" in source, entry_point
