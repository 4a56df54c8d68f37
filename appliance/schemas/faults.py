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
TEXT_MAX: Final = 8 << 20
"""Characters that names of fields and symbols add to the text of one record. A schema may have a name of a million
characters, and a record of a few bytes may have that name a thousand times."""
DECIMAL_BYTES_MAX: Final = 512
"""Bytes of one decimal. As text, a number takes time with the square of its length: 200 KB take 13 s."""
REASON_MAX: Final = 300
"""Characters of a text for a person. Names of a stranger are in it."""


class Undecodable(ApplianceError):
    """The bytes do not fit the schema, or there is no schema. The text is for the person who reads the record."""


class NoSchema(Undecodable):
    """Nobody has said which schema the record has."""
