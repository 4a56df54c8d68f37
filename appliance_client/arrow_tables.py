"""What callers of `send_arrow` have, as an Arrow table: Arrow's own, pandas, Polars, DuckDB, or any Arrow stream."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from appliance_client.errors import SerializationError

_WANTED: Final = "give an Arrow table, a data frame of pandas or Polars, or a DuckDB relation"


class Frame:
    """A table as it was given. `names` are its columns, for pandas also the named levels of its index.

    Raises:
        SerializationError: it is no table.
    """

    def __init__(self, given: Any) -> None:
        self._given = given
        self._is_pandas = _is_of("pandas", given) and hasattr(given, "columns")
        if self._is_pandas:
            levels = [str(each) for each in given.index.names if each is not None]
            columns = [str(each) for each in given.columns]
            self._levels = [each for each in levels if each not in columns]
            self.names: Sequence[str] = [*columns, *self._levels]
            return
        self._objects = _columns_of_objects(given) if _is_of("polars", given) else []
        # Polars would export the addresses of the objects.
        self._given = _opened(given.drop(self._objects) if self._objects else given)
        self.names = [*self._given.schema.names, *self._objects]

    def table(self, used: Iterable[str]) -> pa.Table:
        """The columns `used`, and perhaps others. Of pandas only these are converted: others may not be convertible.

        Raises:
            SerializationError: a column has values that Arrow has no type for.
        """
        wanted = set(used)
        if not self._is_pandas:
            for name in self._objects:
                if name in wanted:
                    raise SerializationError(
                        f"column {name!r} has Python objects, and must be binary or text"
                    )
            return self._given
        frame = self._given
        if not wanted <= set(self.names):
            wanted = set(self.names)
        if wanted & set(self._levels):
            frame = frame.reset_index(level=[each for each in self._levels if each in wanted])
        frame = frame.loc[:, [str(each) in wanted for each in frame.columns]]
        try:
            return _without_empty_floats(pa.Table.from_pandas(frame, preserve_index=False))
        except (pa.ArrowException, ValueError, TypeError) as fault:
            raise SerializationError(f"the data frame cannot be sent: {_text(fault)}") from None


def _without_empty_floats(table: pa.Table) -> pa.Table:
    """pandas has NaN for no value, so a column without any value, or without rows, has the type of floats there."""
    for index, field in enumerate(table.schema):
        if pa.types.is_floating(field.type) and table.column(index).null_count == table.num_rows:
            table = table.set_column(index, field.name, pa.nulls(table.num_rows))
    return table


def _opened(given: Any) -> pa.Table:
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if isinstance(given, pa.RecordBatchReader):
        return given.read_all()
    if not hasattr(given, "__arrow_c_stream__"):
        what = type(given).__name__
        if _is_of("polars", given) and hasattr(given, "collect"):
            raise SerializationError(f"{what} is no table yet: call its collect()")
        if hasattr(given, "to_arrow_table"):
            raise SerializationError(f"{what} is no table: call its to_arrow_table()")
        raise SerializationError(f"{what} is no table: {_WANTED}")
    try:
        return pa.table(given)
    except (pa.ArrowException, ValueError, TypeError) as fault:
        raise SerializationError(f"{type(given).__name__} is no table: {_text(fault)}; {_WANTED}") from None


def _columns_of_objects(given: Any) -> list[str]:
    if not (hasattr(given, "drop") and hasattr(given, "__arrow_c_stream__") and hasattr(given, "schema")):
        return []
    return [name for name, kind in given.schema.items() if kind == sys.modules["polars"].Object]


def _is_of(library: str, given: Any) -> bool:
    """Whether it is an object of this library, or of a class that is derived from one."""
    return any(each.__module__.partition(".")[0] == library for each in type(given).__mro__)


def _text(fault: BaseException) -> str:
    return ": ".join(str(each) for each in fault.args) or type(fault).__name__
