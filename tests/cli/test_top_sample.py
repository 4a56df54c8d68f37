"""What `appliance top` makes of two samples, and that its picture fits."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions

from appliance.cli.top_picture import picture
from appliance.cli.top_sample import Sample, Usage, changes


def process(
    role: str, *, requests: int, idle_ms: int, generation: int = 1, pid: int | None = 7
) -> dict[str, Any]:
    return {
        "role": role, "pid": pid, "generation": generation, "restarts": generation - 1, "state": "running",
        "idle_ms": idle_ms, "requests": requests, "bytes_in": requests * 100, "bytes_out": requests * 1000,
        "connections": 3, "queue_depth": 0, "errors": 0,
    }  # fmt: skip


def sample(at_s: float, *, requests: int = 0, **more: Any) -> Sample:
    told: dict[str, Any] = {
        "processes": [process("netproc 0", requests=requests, idle_ms=round(at_s * 500))],
        "usage": {7: Usage(at_s * 0.25, 5 << 20)},
        "brokers": 1,
        "partitions": {"orders": 2, "__consumer_offsets": 50},
        "ends": {("orders", 0): 100, ("orders", 1): 100},
        "groups": {"billing": {("orders", 0): 40, ("orders", 1): 100}},
    }
    return Sample(at_s, **(told | more))


def test_rates_are_what_changed_in_a_second() -> None:
    now = sample(12, requests=200, ends={("orders", 0): 300, ("orders", 1): 100})
    told = changes(sample(10), now)
    (netproc,) = told["processes"]
    assert netproc["requests_per_second"] == 100
    assert netproc["bytes_in_per_second"] == 10_000
    assert netproc["idle"] == 0.5
    assert netproc["cpu"] == 0.25
    assert told["totals"]["requests_per_second"] == 100
    assert told["topic_rates"] == [{"topic": "orders", "partitions": 2, "records_per_second": 100.0}]
    assert told["group_lags"] == [
        {"group": "billing", "partitions": 2, "lag": 260, "records_per_second": 0.0}
    ]
    assert (told["topics"], told["partitions"]) == (1, 52)


def test_process_that_was_restarted_has_no_rate_instead_of_a_wrong_one() -> None:
    now = sample(12, processes=[process("netproc 0", requests=5, idle_ms=1, generation=2, pid=8)])
    (netproc,) = changes(sample(10, requests=1_000_000), now)["processes"]
    assert netproc["requests_per_second"] is None
    assert netproc["restarts"] == 1


def test_offset_that_went_back_is_no_negative_rate() -> None:
    told = changes(sample(10), sample(12, ends={("orders", 0): 0, ("orders", 1): 0}, groups={"billing": {}}))
    assert told["topic_rates"][0]["records_per_second"] == 0
    assert told["group_lags"][0]["lag"] == 0


@pytest.mark.parametrize("height", [4, 8, 15, 24, 60])
@pytest.mark.parametrize("width", [20, 80, 200])
def test_picture_is_never_larger_than_the_terminal(width: int, height: int) -> None:
    many = {f"topic-{number}-{'x' * 40}": 1 for number in range(200)}
    groups = {f"[red]group\n{number}\x1b[2J": {("orders", 0): 1} for number in range(100)}
    processes = [process(f"ioproc 0.{number}", requests=1, idle_ms=1) for number in range(12)]
    told = changes(
        sample(10, processes=processes, partitions=many, groups=groups),
        sample(12, processes=processes, partitions=many, groups=groups),
    )
    screen = io.StringIO()
    console = Console(file=screen, width=width, height=height, force_terminal=True, color_system=None)
    console.print(picture(told, ConsoleDimensions(width, height)), end="")
    lines = screen.getvalue().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert "\x1b[2J" not in screen.getvalue()
    if height >= 24 and width >= 80:
        text = screen.getvalue()
        for expected in ("PROCESS", "TOPIC", "GROUP", "more", "[red]group", "q ends"):
            assert expected in text
