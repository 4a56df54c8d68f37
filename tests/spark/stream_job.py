"""A streaming query that copies a topic to Parquet and ends with what is there: to be killed at any time.

python -m tests.spark.stream_job DATA_DIRECTORY TOPIC CHECKPOINT OUT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_connector.session import session
from tests.spark.conftest import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(data_dir: str, topic: str, checkpoint: str, out: str) -> None:
    """Runs the query to its end."""
    spark = session("copy", "local[2]", settings=SETTINGS)
    start_copy(spark, data_dir, topic, checkpoint=Path(checkpoint), out=Path(out)).awaitTermination()
    spark.stop()


def start_copy(spark: SparkSession, data_dir: str, topic: str, *, checkpoint: Path, out: Path) -> Any:
    """The query, running."""
    return (
        spark.readStream.format("appliance")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100")
        .load(data_dir)
        .writeStream.format("parquet")
        .option("path", str(out))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
