"""The internal topics of services: how they are created. Only services processes write to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.channels.control_channel import CreateTopics, NewTopic
from appliance.channels.controller_link import ControllerLink
from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import TopicImage

CREATE_MS: Final = 5_000
"""Between two requests to the controller."""
REPLICAS_MAX: Final = 3
BATCH_BYTES_MAX: Final = 4 << 20


def new_topic(name: str, partitions: int, *, slots: int, bounds: Mapping[str, int]) -> NewTopic:
    """Return an internal topic to create.

    Args:
        slots: of the appliance.
        bounds: `retention.ms`, `retention.bytes` and `segment.bytes`.
    """
    replicas = min(REPLICAS_MAX, slots)
    return NewTopic(
        name,
        partitions,
        replicas,
        configs={
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "max.message.bytes": str(BATCH_BYTES_MAX),
            "message.timestamp.type": "CreateTime",
            "min.insync.replicas": str(min(2, replicas)),
            "unclean.leader.election.enable": "false",
            **{setting: str(number) for setting, number in bounds.items()},
        },
    )


class Creation:
    """Asks the controller for topics, again every CREATE_MS as long as the caller does."""

    __slots__ = ("_asked_ns", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_ns: int | None = None

    def ask(self, controller: ControllerLink, topics: tuple[NewTopic, ...]) -> None:
        """Ask, unless it was asked a moment ago."""
        now_ns = self._clock.monotonic_ns()
        if self._asked_ns is None or now_ns - self._asked_ns >= CREATE_MS * NS_PER_MS:
            self._asked_ns = now_ns
            controller.ask(CreateTopics(topics))


def is_enabled(topic: TopicImage, name: str) -> bool:
    """Return whether a topic has a boolean setting that is off by default."""
    return topic.configs.get(name, "").strip().lower() == "true"
