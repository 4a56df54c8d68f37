"""One step of change on its way: what a turn of the controller decided, until everyone who asked has an
answer.

    decided → store written → [image without the doomed] → workers told ─┬→ all answered ─┬→ image → answers
                                                                         └→ time is up ───┘

A wave that is overdue answers REQUEST_TIMED_OUT for what is not done; what was decided stays decided, as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

import msgspec

from appliance.channels.control_channel import (
    AclOutcomes,
    ConfigOutcome,
    QuotaOutcomes,
    ScramOutcomes,
    TokenOutcome,
    TopicOutcome,
)
from appliance.channels.roles import Role
from appliance.cluster import TopicImage
from appliance.protocol.errors import ErrorCode


class Ask(msgspec.Struct):
    """A question of a network process, and what it will be told."""

    sender: bytes
    number: int
    outcomes: list[TopicOutcome]
    throttle_ms: int = 0


class ConfigAsk(msgspec.Struct):
    """As `Ask`, about settings."""

    sender: bytes
    number: int
    outcomes: list[ConfigOutcome]


ImageOutcomes = AclOutcomes | QuotaOutcomes | ScramOutcomes | TokenOutcome


class ImageAsk(msgspec.Struct):
    """As `Ask`, about rules, quotas, credentials or tokens. Nobody but the image is waited for."""

    sender: bytes
    number: int
    outcomes: ImageOutcomes


class Wave(msgspec.Struct):
    """`appearing` topics become visible when the workers in `waiting` have answered, and so do the settings of
    `altered` ones; `doomed` are being deleted."""

    number: int
    waiting: set[Role]
    appearing: dict[str, TopicImage]
    doomed: frozenset[str]
    asks: list[Ask]
    altered: frozenset[str] = frozenset()
    config_asks: list[ConfigAsk] = msgspec.field(default_factory=list)
    image_asks: list[ImageAsk] = msgspec.field(default_factory=list)
    failures: dict[str, tuple[int, str]] = msgspec.field(default_factory=dict)
    overdue: bool = False

    def is_over(self, deletions: Collection[str]) -> bool:
        """Whether it can be answered. `deletions`: names of topics that are not forgotten yet."""
        return self.overdue or not (self.waiting or self.doomed & set(deletions))

    def told(
        self, outcome: TopicOutcome, deletions: Collection[str], *, owner: Callable[[int, UUID, int], Role]
    ) -> TopicOutcome:
        """What is said of one topic now. `owner`: the worker of a leading slot, a topic id and a partition."""
        name = outcome.name
        topic = self.appearing.get(name)
        if outcome.error or (topic is None and name not in self.doomed):
            return outcome
        failed = self._failure_of(name)
        if failed is not None:
            return msgspec.structs.replace(outcome, error=failed[0], message=failed[1])
        late = name in deletions if topic is None else self._waits_for(topic, owner)
        if late:
            code = ErrorCode.REQUEST_TIMED_OUT
            return msgspec.structs.replace(outcome, error=int(code), message=code.message)
        return outcome

    def told_of_configs(self, outcome: ConfigOutcome) -> ConfigOutcome:
        """What is said of one resource now. A partition that could not be opened will be, with its new settings."""
        if outcome.error or not self.waiting:
            return outcome
        code = ErrorCode.REQUEST_TIMED_OUT
        return msgspec.structs.replace(outcome, error=int(code), message=code.message)

    def _waits_for(self, topic: TopicImage, owner: Callable[[int, UUID, int], Role]) -> bool:
        return any(
            owner(each.leader, topic.topic_id, each.partition) in self.waiting for each in topic.partitions
        )

    def _failure_of(self, name: str) -> tuple[int, str] | None:
        for partition, failure in self.failures.items():
            if partition.rpartition("-")[0] == name:
                return failure
        return None
