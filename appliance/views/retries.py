"""Which topics belong to the retries of a group, as the settings of topics say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.cluster import is_internal
from appliance.config.retry_configs import (
    DEAD_LETTER_OF,
    RETRY_DEAD_LETTERS,
    RETRY_ENABLE,
    RETRY_GROUP,
    RETRY_LEVELS,
    RETRY_MAX,
    RETRY_ORDERED,
    RETRY_ORDERED_BY_KEY,
    RETRY_TOPIC,
)
from appliance.protocol.retry_names import dead_letter_topic, retry_topic
from appliance.views.topic_access import NotShown, TopicReader


@dataclass(frozen=True, slots=True)
class Retries:
    """The retries of a group on a topic. `fault`: why they do not work as they should; "" if they do."""

    group: str
    topic: str
    retry_topic: str
    dead_letter_topic: str
    levels: tuple[str, ...]
    retries_max: int
    is_enabled: bool
    is_ordered: bool
    is_ordered_by_key: bool
    fault: str

    def as_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "topic": self.topic,
            "retry_topic": self.retry_topic,
            "dead_letter_topic": self.dead_letter_topic,
            "levels": list(self.levels),
            "max": self.retries_max,
            "enabled": self.is_enabled,
            "ordered": self.is_ordered,
            "ordered_by_key": self.is_ordered_by_key,
            "fault": self.fault or None,
        }


def retries_of(reader: TopicReader, group: str, topic: str) -> Retries:
    """Return the retries of a group on a topic.

    Raises:
        NotShown: there are none.
    """
    retry, dead = retry_topic(group, topic), dead_letter_topic(group, topic)
    configs = reader.configs([retry, dead])
    found = _retries(retry, configs.get(retry, {}), configs)
    if retry not in configs and configs.get(dead, {}).get(DEAD_LETTER_OF) == retry:
        raise NotShown(
            f"the retry topic {retry} does not exist, or you may not see it; its dead letters are still in {dead}. "
            "`appliance retries enable` creates it again"
        )
    if found is None or (found.group, found.topic) != (group, topic):
        raise NotShown(
            f"the group {group!r} has no retries on the topic {topic!r}; `appliance retries enable` sets them up"
        )
    return found


def all_retries(reader: TopicReader, names: Iterable[str] | None = None) -> list[Retries]:
    """Return the retries of all groups.

    Args:
        names: of the topics to look at; None for all that the reader may see.
    """
    names = reader.topics() if names is None else names
    configs = reader.configs(sorted(name for name in names if not is_internal(name)))
    found = (_retries(name, each, configs) for name, each in configs.items())
    return sorted((each for each in found if each is not None), key=lambda each: (each.group, each.topic))


def _retries(
    name: str, configs: Mapping[str, str], others: Mapping[str, Mapping[str, str]]
) -> Retries | None:
    if not configs.get(RETRY_GROUP):
        return None
    dead = configs.get(RETRY_DEAD_LETTERS, "")
    fault = ""
    if dead not in others:
        fault = f"the dead-letter topic {dead} does not exist; dead records come again on the last level"
    elif others[dead].get(DEAD_LETTER_OF) != name:
        fault = (
            f"{DEAD_LETTER_OF} of the topic {dead} is not {name}; dead records come again on the last level"
        )
    return Retries(
        configs[RETRY_GROUP],
        configs.get(RETRY_TOPIC, ""),
        name,
        dead,
        tuple(each.strip() for each in configs[RETRY_LEVELS].split(",")),
        int(configs[RETRY_MAX]),
        configs[RETRY_ENABLE].lower() == "true",
        configs[RETRY_ORDERED].lower() == "true",
        configs.get(RETRY_ORDERED_BY_KEY, "").lower() == "true",
        fault,
    )
