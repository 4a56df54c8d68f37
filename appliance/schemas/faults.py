"""Why a record has no text, and the bounds of what is decoded."""

from __future__ import annotations

from typing import Final

from appliance.errors import ApplianceError

DATA_BYTES_MAX: Final = 1 << 20
"""Larger keys and values are not decoded."""
SCHEMA_BYTES_MAX: Final = 1 << 20
DESCRIPTORS_BYTES_MAX: Final = 8 << 20
DEPTH_MAX: Final = 64
"""Values inside of values, and types inside of types."""
ITEMS_MAX: Final = 100_000
"""Values in one record, with those inside of others."""


class Undecodable(ApplianceError):
    """The bytes do not fit the schema, or there is no schema. The text is for the person who reads the record."""


class NoSchema(Undecodable):
    """Nobody has said which schema the record has."""
