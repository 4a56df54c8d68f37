"""A streaming query that copies a topic to Parquet and ends with what is there: to be killed at any time.

python -m tests.spark.stream_job DATA_DIRECTORY TOPIC CHECKPOINT OUT
"""

from __future__ import annotations

import sys

from spark_connector.session import session
from tests.spark.conftest import SETTINGS


def main(data_dir: str, topic: str, checkpoint: str, out: str) -> None:
    """Runs the query to its end."""
    spark = session("copy", "local[2]", settings=SETTINGS)
    query = (
        spark.readStream.format("appliance")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100")
        .load(data_dir)
        .writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
