"""How many connections one address may hold where nothing is said of it."""

from __future__ import annotations

import pytest

from appliance.config import NetworkSettings


@pytest.mark.parametrize(("connections_max", "one_address"), [(10_000, 9_000), (100, 90), (99, 99), (1, 1)])
def test_one_address_does_not_get_all_connections(connections_max: int, one_address: int) -> None:
    settings = NetworkSettings(connections_max=connections_max)
    assert settings.connections_from_one_address == one_address


def test_one_address_gets_what_it_is_given() -> None:
    settings = NetworkSettings(connections_max=100, connections_max_per_ip=100)
    assert settings.connections_from_one_address == 100
