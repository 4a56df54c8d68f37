"""DeleteTopics (20), versions 1-6: by name, from v6 on by name or id."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

import msgspec

from appliance.protocol.apis.topic_selector import TopicSelector


class DeleteTopicsRequest(msgspec.Struct, frozen=True):
    WIRE_NAMES: ClassVar[dict[str, str]] = {"topic_names": "topics"}

    topics: tuple[TopicSelector, ...]
    timeout_ms: int


class DeletableTopicResult(msgspec.Struct, frozen=True):
    """`name` may be None only from v6 on, for a topic id that is not known."""

    name: str | None
    topic_id: UUID | None = None
    error_code: int = 0
    error_message: str | None = None


class DeleteTopicsResponse(msgspec.Struct, frozen=True):
    responses: tuple[DeletableTopicResult, ...]
    throttle_time_ms: int = 0
