"""From a planned range to Arrow record batches. No Spark in it: a task, an export or a script reads with this.

for range in plan(…):
    for batch in record_batches(range, ("offset", "value")):
        …
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from appliance.protocol.columns.chunk import Corruption
from appliance.protocol.columns.decode import Decoder, Wanted
from spark_connector.arrow_columns import ArrowColumns
from spark_connector.arrow_schema import schema_of
from spark_connector.errors import CorruptSegment
from spark_connector.planning import ScanRange
from spark_connector.scan import scan


def record_batches(
    task: ScanRange,
    columns: Sequence[str],
    *,
    schema: pa.Schema | None = None,
    corrupt: list[Corruption] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a range in the order of their offsets, at most 8,192 rows and about 4 MiB a batch.

    What is not among `columns` is not decoded. Records outside of the range's timestamps are left out.

    Args:
        schema: the columns' Arrow types, where they are to be others than `schema_of` says in nullability.
        corrupt: what does not hold is told here as (path, position, reason) and passed over; None: it is an error.

    Raises:
        CorruptSegment, ShortRead, DataLost, LeaseRevoked: as `scan`; it never ends early without one of them.
    """
    from_ms, until_ms = task.timestamps_ms
    ever = Wanted()
    decoder = Decoder(
        Wanted(
            key="key" in columns,
            value="value" in columns,
            headers="headers" in columns,
            from_ms=ever.from_ms if from_ms is None else from_ms,
            until_ms=ever.until_ms if until_ms is None else until_ms,
        ),
        corrupt=corrupt,
        error=CorruptSegment,
    )
    arrow = ArrowColumns(columns, schema or schema_of(columns), topic=task.topic, partition=task.partition)
    for chunk in scan(task, on_corrupt="fail" if corrupt is None else "skip", corrupt=corrupt):
        for rows in decoder.rows(chunk):
            yield from arrow.batches(rows)
