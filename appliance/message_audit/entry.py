"""Entries of the message audit: values of records in `__audit`, as JSON. docs/message-audit.md describes each field.

Counts are increments: the number of a bucket is the sum over all its entries. Each batch of `__audit` also has one
record of kind `positions`, which says how far the logs were counted. So counts and positions are in the log together,
or not at all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

VERSION: Final = 1


class Kind(StrEnum):
    """What an entry says. The first three are counts, the others findings, the last one is of the audit itself."""

    PRODUCED = "produced"
    COMMITTED = "committed"
    FETCHED = "fetched"
    MISSING = "missing"
    LATE = "late"
    DUPLICATE = "duplicate"
    REWOUND = "rewound"
    UNSEEN = "unseen"
    POSITIONS = "positions"


COUNTS: Final = frozenset({Kind.PRODUCED, Kind.COMMITTED, Kind.FETCHED})


class Count(msgspec.Struct, kw_only=True):
    """`delay`: bound in ms (a number as text, or `inf`) → records; records without a known delay are in none."""

    v: int = VERSION
    kind: str
    topic: str
    partition: int
    bucket: int
    bucket_ms: int
    client: str = ""
    principal: str = ""
    group: str = ""
    records: int
    bytes: int
    delay: dict[str, int] = {}
    delay_sum_ms: int = 0
    delay_max_ms: int = 0


class Finding(msgspec.Struct, kw_only=True, omit_defaults=False):
    """Ids (kinds missing, late, duplicate) or offsets (rewound, unseen) `first` to `last`, both included.

    `unnamed`: if it is above 0, so many more were found, and are not named.
    """

    v: int = VERSION
    kind: str
    topic: str
    partition: int
    bucket: int
    bucket_ms: int = 0
    source: str = ""
    group: str = ""
    first: int = -1
    last: int = -1
    offset: int = -1
    unnamed: int = 0


class Entry(msgspec.Struct, kw_only=True):
    """Any entry, as a reader sees it: every field of both, with defaults."""

    v: int = 0
    kind: str = ""
    topic: str = ""
    partition: int = -1
    bucket: int = -1
    bucket_ms: int = 0
    client: str = ""
    principal: str = ""
    group: str = ""
    source: str = ""
    records: int = 0
    bytes: int = 0
    delay: dict[str, int] = {}
    delay_sum_ms: int = 0
    delay_max_ms: int = 0
    first: int = -1
    last: int = -1
    offset: int = -1
    unnamed: int = 0


_decoder: Final = msgspec.json.Decoder(Entry)


def encode(entry: Count | Finding) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(entry)


def decode(value: bytes | None) -> Entry | None:
    """Return an entry; None if it is no such JSON, or of another version."""
    try:
        entry = _decoder.decode(value or b"")
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return entry if entry.v == VERSION else None
