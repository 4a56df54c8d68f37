"""DeleteTopics (20), versions 1-6: by name, from v6 on by name or id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from appliance.protocol.apis.topic_selector import TopicSelector


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    WIRE_NAMES: ClassVar[dict[str, str]] = {"topic_names": "topics"}

    topics: tuple[TopicSelector, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class DeletableTopicResult:
    """`name` may be None only from v6 on, for a topic id that is not known."""

    name: str | None
    topic_id: UUID | None = None
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse:
    responses: tuple[DeletableTopicResult, ...]
    throttle_time_ms: int = 0
