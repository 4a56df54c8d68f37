"""The columns of records and their Arrow types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""All columns, as spark-sql-kafka has them: `timestampType` is 0 for CreateTime and 1 for LogAppendTime; `headers` is
null for a record that has none."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])
