"""The ceiling: a source in Python that hands out one prepared batch again and again, with nothing read or decoded."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_connector.planning import SPLIT_BYTES

BATCH_ROWS = 8192
RECORD_BYTES = 20
"""What a record takes beside its value, about: its key, and what says where it ends."""


class CeilingSource(DataSource):
    """`rows` rows with values of `value_bytes`, in batches, types and about as many tasks as the connector's own."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
            " timestampType int"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(int(self.options["rows"]), int(self.options["value_bytes"]))


class CeilingReader(DataSourceReader):
    def __init__(self, rows: int, value_bytes: int) -> None:
        self.rows = rows
        self.value_bytes = value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        task_rows = max(1, SPLIT_BYTES // (self.value_bytes + RECORD_BYTES))
        return [InputPartition(min(task_rows, self.rows - at)) for at in range(0, self.rows, task_rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = int(partition.value)
        size = min(BATCH_ROWS, max(1, (4 << 20) // self.value_bytes))
        batch = pa.RecordBatch.from_pydict(
            {
                "key": pa.array([b"key-%04d" % (row % 1000) for row in range(size)], pa.binary()),
                "value": pa.array([bytes(self.value_bytes)] * size, pa.binary()),
                "topic": pa.array(["topic"] * size),
                "partition": pa.array(np.zeros(size, np.int32)),
                "offset": pa.array(np.arange(size)),
                "timestamp": pa.array(np.arange(size), pa.timestamp("us", tz="UTC")),
                "timestampType": pa.array(np.zeros(size, np.int32)),
            }
        )
        while left > 0:
            yield batch.slice(0, min(left, size))
            left -= size
        _freeze()


def _freeze() -> None:
    """As the connector does: Spark's daemon collects garbage after every task, over all that was imported."""
    import gc

    global _frozen  # noqa: PLW0603 (one for the process, as the collector is)
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


_frozen = False
