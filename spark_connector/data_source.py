"""`format("appliance")`: what PySpark calls. It reads options, and hands out readers."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import DataType, StructField, StructType

from spark_connector.batch_reader import batch_reader
from spark_connector.collector import spare_the_collector_of_planning
from spark_connector.columns import TYPES, Columns, schema_of, types_of
from spark_connector.option_values import InvalidOption
from spark_connector.options import View, columns_of, of_table, read_options, refuse_unknown, view_of
from spark_connector.plain_errors import plain_errors
from spark_connector.stream_reader import StreamReader


class ApplianceDataSource(DataSource):
    """Topics of the appliance, read from its directories. `spark_connector.options` lists the options.

    `latest` and timestamps are resolved whenever Spark plans a query, so a query sees what is there when it is planned.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = {name: options[name] for name in options}
        table = of_table(given)
        self._creates_table = table is not None
        super().__init__(given if table is None else table)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "appliance"

    def schema(self) -> StructType:
        """The columns asked for. Options are checked here already: `load()` and CREATE TABLE reject a wrong one."""
        with plain_errors():
            refuse_unknown(self.options)
            names = columns_of(self.options)
            view = view_of(self.options)
            types = types_of(view)
            schema = schema_of(names if view is View.RECORDS else tuple(types), types)
            if self._creates_table:
                read_options(self.options, streaming=False)
                schema = _carrying(schema, self.options)
        spare_the_collector_of_planning()
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        with plain_errors():
            given = self._given(schema)
            options = read_options(given, streaming=False)
            return batch_reader(options, _columns(given, schema, types_of(options.view)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        """Reads a stream."""
        with plain_errors():
            given = self._given(schema)
            return StreamReader(read_options(given, streaming=True), _columns(given, schema, TYPES))

    def _given(self, schema: StructType) -> dict[str, str]:
        """The options of the query, over those of the table that it reads."""
        found = _carried(schema)
        for name, text in self.options.items():
            for other in _CONTRADICTING.get(name.lower(), ()):
                found.pop(other, None)
            found[name.lower()] = text
        return found


_CARRIER: Final = "appliance.options"
_CONTRADICTING: Final = {
    name: tuple(other for other in group if other != name)
    for group in (
        ("path", "paths"),
        ("subscribe", "subscribepattern", "assign"),
        ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"),
        ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
        ("kafka.isolation.level", "isolationlevel"),
    )
    for name in group
}


def _carrying(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table, which carries the table's options in the metadata of its first column.

    Spark 4.3 hands the options of a table to `schema()` when the table is created, and to nobody when it is read; what
    it keeps in its catalog is the schema.
    """
    first = schema.fields[0]
    carrier = StructField(first.name, first.dataType, first.nullable, {_CARRIER: json.dumps(dict(options))})
    return StructType([carrier, *schema.fields[1:]])


def _carried(schema: StructType) -> dict[str, str]:
    """The options that a table's schema carries, under lower-cased names; none of any other schema."""
    for field in schema.fields:
        content = field.metadata.get(_CARRIER) if field.metadata else None
        if content is not None:
            return {str(name).lower(): str(text) for name, text in json.loads(content).items()}
    return {}


def _columns(given: Mapping[str, str], schema: StructType, types: dict[str, DataType]) -> Columns:
    """The columns of a schema, our own or the user's.

    Raises:
        InvalidOption: it is the user's, and contradicts the option `columns`.
    """
    found = Columns.of(schema, types)
    if "columns" in given and found.names != columns_of(given):
        raise InvalidOption("columns", f"contradicts the schema that was given: {', '.join(found.names)}")
    return found
