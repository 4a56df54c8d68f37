"""Arrow parts of the asyncio client, which load pyarrow only when a program uses them. Call them in a thread."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any


def columns_to_send(*given: Any) -> Any:
    """Return a table that is ready to be encoded, as `arrow_sending.ColumnsToSend`."""
    from appliance_client.arrow_sending import ColumnsToSend

    return ColumnsToSend(*given)


def reader_and_schema(fetching: Any, *, check_crcs: bool) -> tuple[Any, Any]:
    """Return what makes tables of fetched batches, and the schema of all columns."""
    from appliance_client.arrow_reading import SCHEMA, ColumnsReader, prepare

    prepare()
    return ColumnsReader(fetching, nullcontext(), check_crcs=check_crcs), SCHEMA
