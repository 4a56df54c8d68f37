"""A Spark session set up for this source, and what sets up one that is there already.

What is set, and why (figures of two cores, five million records of 200 bytes):

=============================================  ============================================================
`spark.python.unix.domain.socket.enabled`      batches reach the Java side over a Unix socket: 1.4 to 1.6 times
                                               as many rows a second; must stand when the session starts
`spark.sql.python.filterPushdown.enabled`      conditions reach the source, which then reads only the segments
                                               and ranges that can match; may be set at any time
=============================================  ============================================================
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_connector.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = "appliance"
PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"
PYTHON: Final = "spark.pyspark.python"
TUNED: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",
    PUSH_DOWN: "true",
}


def session(
    name: str = "appliance", master: str | None = None, *, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, started tuned where there is none yet, with the source registered.

    Args:
        name: what Spark's pages call the application.
        master: `local[2]`, `spark://host:7077`, …; None: what Spark's configuration says, else all cores of this host.
        settings: Spark's settings, which go before ours.

    Raises JavaMissing where there is no Java to run Spark on.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return register(running)
    use_java()
    # Spark starts its Python workers by the name python3, which need not be the Python that has this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder().appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**TUNED, **(settings or {})}.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Makes `format("appliance")` known to `spark` and has conditions handed to it. Returns `spark`.

    Needed where the package came by `--py-files`. A source that is installed is found by itself, but conditions are
    handed to it only after this (or with `spark.sql.python.filterPushdown.enabled` set).
    """
    from spark_connector.data_source import ApplianceDataSource

    _use_this_python(spark)
    spark.dataSource.register(ApplianceDataSource)
    spark.conf.set(PUSH_DOWN, "true")
    return spark


def _use_this_python(spark: SparkSession) -> None:
    """Has workers on this host run the Python that runs this program, where nobody has said which one they run.

    Spark starts them by the name python3. In a virtual environment that was not activated this is another Python,
    without PySpark and without this package.
    """
    if "PYSPARK_PYTHON" in os.environ or "PYSPARK_DRIVER_PYTHON" in os.environ:
        return
    try:
        context = spark.sparkContext
        if str(context.master).startswith("local") and context.getConf().get(PYTHON) is None:
            context.pythonExec = sys.executable
    except Exception:  # over Spark Connect there is no context, and the server says which Python
        return
