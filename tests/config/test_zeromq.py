"""Listeners leave each other their ports and files, and a client on another host can use what WELCOME names."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from appliance.config import load_settings
from appliance.config.sections.zeromq import netproc_endpoint, overlap_of, told_endpoint
from appliance.errors import ConfigurationError


@pytest.mark.parametrize(
    ("listener", "bound", "told"),
    [
        ("tcp://*:5555", "tcp://*:5558", "tcp://*:5558"),
        ("tcp://0.0.0.0:5555", "tcp://0.0.0.0:5558", "tcp://*:5558"),
        ("tcp://[::]:5555", "tcp://[::]:5558", "tcp://*:5558"),
        ("tcp://10.0.0.7:5555", "tcp://10.0.0.7:5558", "tcp://10.0.0.7:5558"),
        ("ipc:///run/zeromq", "ipc:///run/zeromq.2", "ipc:///run/zeromq.2"),
    ],
)
def test_every_address_is_told_as_a_star(listener: str, bound: str, told: str) -> None:
    assert netproc_endpoint(listener, 2) == bound
    assert told_endpoint(listener, 2) == told


@pytest.mark.parametrize(
    ("first", "second", "is_overlap"),
    [
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556", True),
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5557", True),
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5558", False),
        ("tcp://127.0.0.1:5555", "tcp://*:5557", True),
        ("tcp://127.0.0.1:5555", "tcp://0.0.0.0:5557", True),
        ("tcp://127.0.0.1:5555", "tcp://10.0.0.7:5556", False),
        ("ipc:///run/z", "ipc:///run/z.1", True),
        ("ipc:///run/z", "ipc:///run/../run/z.0", True),
        ("ipc:///run/z", "ipc:///run/z.lock", True),
        ("ipc:///run/z", "ipc:///run/z.2", False),
        ("ipc:///run/5555", "tcp://127.0.0.1:5555", False),
    ],
)
def test_listeners_that_need_the_same_port_or_file_are_refused(
    first: str, second: str, *, is_overlap: bool
) -> None:
    """Else network processes would fail to bind for ever, or take a socket file from one another."""
    assert (overlap_of((first, second), 2) is not None) == is_overlap
    assert (overlap_of((second, first), 2) is not None) == is_overlap
    overrides = {
        "listeners.zeromq": f"{first},{second}",
        "zeromq.tcp.insecure": "true",
        "network.processes": "2",
    }
    with pytest.raises(ConfigurationError, match="same port or file") if is_overlap else nullcontext():
        load_settings(overrides=overrides)
