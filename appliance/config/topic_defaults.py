"""Broker options that set the defaults of topic settings, such as `log.retention.hours`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.config.declaration import BrokerSynonym, ConfigType, Declaration, Effect
from appliance.config.topic_configs import topic_config_declarations


def _broker_wide(topic: Declaration, synonym: BrokerSynonym) -> Declaration:
    """The declaration of a broker-wide name, from the topic setting it gives a default to.

    As with Kafka, only the first name of a setting can be changed while the broker runs.
    """
    first = synonym is topic.synonyms[0]
    minimum = topic.minimum
    if synonym.factor != 1 and minimum is not None and minimum > 0:
        minimum = 1
    return Declaration(
        name=synonym.name,
        type=topic.type if synonym.factor == 1 else ConfigType.INT,
        default=topic.default if synonym.factor == 1 and synonym.default is not None else None,
        doc=topic.doc,
        unit=synonym.unit,
        minimum=minimum,
        maximum=topic.maximum,
        choices=topic.choices,
        special=topic.special,
        effect=topic.effect if topic.effect is Effect.NONE or first else Effect.AT_RESTART,
    )


BROKER_WIDE: Final[Mapping[str, tuple[Declaration, Declaration, BrokerSynonym]]] = {
    synonym.name: (_broker_wide(topic, synonym), topic, synonym)
    for topic in topic_config_declarations()
    for synonym in topic.synonyms
}
"""Broker-wide name → its own declaration, the topic setting's, and the synonym that joins them."""


def topic_defaults(*levels: Mapping[str, str]) -> dict[str, str]:
    """What the broker-wide names in `levels`, first one first in line, make of the topic settings.

    Where several names of one setting are set on a level the first in Kafka's order wins: log.retention.ms,
    then log.retention.minutes, then log.retention.hours.
    """
    defaults: dict[str, str] = {}
    for level in reversed(levels):
        for topic in topic_config_declarations():
            for synonym in topic.synonyms:
                if (text := level.get(synonym.name)) is not None:
                    defaults[topic.name] = scaled(text, synonym)
                    break
    return defaults


def scaled(text: str, synonym: BrokerSynonym) -> str:
    """A broker-wide value in the topic setting's unit; negative numbers mean "no limit" in every unit."""
    return text if synonym.factor == 1 or int(text) < 0 else str(int(text) * synonym.factor)
