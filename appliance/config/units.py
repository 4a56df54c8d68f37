"""A unit after a number, in settings that go over the wire: there Kafka takes plain numbers only."""

from __future__ import annotations

from functools import cache

from appliance.config.declaration import amount_in_unit
from appliance.config.dynamic import DYNAMIC_BROKER_CONFIGS
from appliance.config.loading import broker_declarations
from appliance.config.topic_configs import TOPIC_CONFIGS


def plain_value(name: str, text: str) -> str:
    """`7d` in milliseconds for a setting of that unit, and so on; any other text as it is."""
    amount = amount_in_unit(text, _units().get(name, ""))
    return text if amount is None else str(amount)


@cache
def _units() -> dict[str, str]:
    """Name of a topic, broker or group setting → its unit."""
    declared = {**broker_declarations(), **DYNAMIC_BROKER_CONFIGS, **TOPIC_CONFIGS}
    units = {name: each.unit for name, each in declared.items()}
    return units | {name.removeprefix("group."): unit for name, unit in units.items()}
