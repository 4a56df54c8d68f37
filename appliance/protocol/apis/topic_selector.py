"""A topic named by a client, by name or by id."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

import msgspec


class TopicSelector(msgspec.Struct, frozen=True):
    """One of both is given; where a client gave both, the id decides (KIP-516)."""

    BARE_FIELD: ClassVar[str] = "name"

    name: str | None = None
    topic_id: UUID | None = None
