"""Errors of the source without a traceback of Python before them.

PySpark puts the traceback of a worker in front of an error's text, so a misspelled option stands below a page of file
names. Its switch `SPARK_HIDE_TRACEBACK` is read when the error leaves the worker, whose process then ends. So the
source sets it in the worker for its own errors only; errors of anything else keep their traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from appliance.errors import ApplianceError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_WANTED: Final = "SPARK_TRACEBACK_WITH_LOCALS"
"""The switch of a user who looks for tracebacks (`spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled`)."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let errors that the body raises on purpose reach the user as one line."""
    try:
        yield
    except ApplianceError:
        if is_worker() and not os.environ.get(_WANTED):
            os.environ[_HIDE] = "1"
        raise


def is_worker() -> bool:
    """Whether this process was started by Spark, and not by the user's program."""
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return str(getattr(spec, "name", "")).startswith("pyspark.")
