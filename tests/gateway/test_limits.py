"""ZeroMQ refuses no message of a client that keeps to its window, however large the operator lets windows be."""

from __future__ import annotations

import dataclasses

import pytest

from appliance.config import Settings
from appliance.config.sections.zeromq import ZeroMqSettings
from appliance.gateway.limits import opened, sent_max
from appliance.gateway.window import Outstanding, Window


@pytest.mark.parametrize("window_max", [65536, 16 << 20, 64 << 20])
def test_the_smallest_messages_of_the_largest_window_fit_the_queue_of_zeromq(window_max: int) -> None:
    settings = dataclasses.replace(Settings(), zeromq=ZeroMqSettings(window_max_bytes=window_max))
    window = Window(
        1 << 62,
        window_max=window_max,
        new_mark=iter(range(1, 1 << 62)).__next__,
        outstanding=Outstanding(1 << 40),
    )
    sent = 0
    while window.is_open:
        window.sent(1)
        sent += 1
    assert sent < sent_max(settings)
    assert opened(bytes(16), settings).window_max == window_max
