"""How deep a JSON text is."""

from __future__ import annotations

import pytest

from appliance.schemas.nesting import json_depth


@pytest.mark.parametrize(
    ("text", "depth"),
    [("", 0), ("7", 0), ("[]", 1), ('{"a": [{}], "b": []}', 3), ("[" * 100_000, 100_000), ("]]][", 0)],
)
def test_depth_is_the_most_brackets_that_are_open_at_once(text: str, depth: int) -> None:
    assert json_depth(text) == depth
