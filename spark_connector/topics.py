"""Topics as DataFrames and as views that see what came in since, each query anew.

Spark plans a source written in Python once for each DataFrame, and keeps that plan: a second query over it does not
see records that were written after the first. With a condition that Spark hands to the source it plans for each query
again, so each DataFrame made here carries one that is always true.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Final

from appliance.errors import ConfigurationError
from spark_connector.directory import Directories
from spark_connector.session import FORMAT, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
"""One data directory, or the directories of several slots."""

ALWAYS: Final = "offset >= 0"
INTERNAL: Final = "__"


def topic(
    spark: SparkSession,
    name: str,
    *,
    path: Paths,
    columns: Sequence[str] = (),
    start: datetime | str = "earliest",
    end: datetime | str = "latest",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The records of one topic; each query over it plans anew and sees what has come meanwhile.

    Args:
        columns: those that are needed, of the source's schema; none: all but the headers. Naming them is worth a factor
            of 1.3 to 2, because Spark does not tell a source which ones a query needs.
        start, end: a moment with its time zone, or what `startingOffsets` and `endingOffsets` take.
        options: further options of the source, under their names.

    Raises ConfigurationError.
    """
    register(spark)
    chosen = dict(options or {})
    chosen |= {"path": _path_option(path), "subscribe": name}
    chosen |= _bound("starting", start) | _bound("ending", end)
    if columns:
        # The condition needs the offset; what Spark reads beyond the wish are eight bytes a row.
        chosen["columns"] = ",".join(columns if "offset" in columns else (*columns, "offset"))
    frame = spark.read.format(FORMAT).options(**chosen).load().where(ALWAYS)
    return frame.select(*columns) if columns else frame


def views(
    spark: SparkSession, path: Paths, *, prefix: str = "", options: Mapping[str, str] | None = None
) -> list[str]:
    """Makes a temporary view of each topic, under its name (in SQL between backticks where it has a dot or a dash).

    Topics that come later need another call; those of the broker's own (`__consumer_offsets`, …) get none.
    Returns the names. Raises ConfigurationError where two names differ in case only, which Spark does not tell apart.
    """
    names = sorted(name for name in _directories(path).topics() if not name.startswith(INTERNAL))
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ConfigurationError(
                f"topics {other!r} and {name!r} would be one view; read them with topic(spark, name, path=…)"
            )
    for name in names:
        frame = topic(spark, name, path=path, options=options)
        frame.createOrReplaceTempView(f"`{prefix}{name}`")
    return [prefix + name for name in names]


def _directories(path: Paths) -> Directories:
    return Directories(_listed(path))


def _listed(path: Paths) -> list[str]:
    return [fspath(path)] if isinstance(path, str | PathLike) else [fspath(each) for each in path]


def _path_option(path: Paths) -> str:
    """As the option takes it: a JSON list, since a directory's name may hold a comma."""
    return json.dumps(_listed(path))


def _bound(which: str, at: datetime | str) -> dict[str, str]:
    """`which` is `starting` or `ending`."""
    if isinstance(at, str):
        return {f"{which}Offsets": at}
    if at.tzinfo is None:
        raise ConfigurationError(f"{at.isoformat()} has no time zone: say datetime(…, tzinfo=UTC)")
    return {f"{which}Timestamp": str(round(at.timestamp() * 1000))}
