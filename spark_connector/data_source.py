"""`format("appliance")`: what PySpark calls. It reads options, and hands out readers."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import DataType, StructType

from spark_connector.batch_reader import batch_reader
from spark_connector.collector import spare_the_collector_of_planning
from spark_connector.columns import TYPES, Columns, schema_of, types_of
from spark_connector.option_values import InvalidOption
from spark_connector.options import View, columns_of, read_options, refuse_unknown, view_of
from spark_connector.stream_reader import StreamReader


class ApplianceDataSource(DataSource):
    """Topics of the appliance, read from its directories. `spark_connector.options` lists the options.

    `latest` and timestamps are resolved whenever Spark plans a query, so a query sees what is there when it is planned.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({name: options[name] for name in options})

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "appliance"

    def schema(self) -> StructType:
        """The columns asked for. Options are looked through here already: `load()` refuses a wrong one."""
        refuse_unknown(self.options)
        names = columns_of(self.options)
        view = view_of(self.options)
        types = types_of(view)
        schema = schema_of(names if view is View.RECORDS else tuple(types), types)
        spare_the_collector_of_planning()
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        options = read_options(self.options, streaming=False)
        return batch_reader(options, self._columns(schema, types_of(options.view)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        """Reads a stream."""
        return StreamReader(read_options(self.options, streaming=True), self._columns(schema, TYPES))

    def _columns(self, schema: StructType, types: dict[str, DataType]) -> Columns:
        """The columns of a schema, our own or the user's.

        Raises:
            InvalidOption: it is the user's, and contradicts the option `columns`.
        """
        found = Columns.of(schema, types)
        given = {name.lower() for name in self.options}
        if "columns" in given and found.names != columns_of(self.options):
            raise InvalidOption("columns", f"contradicts the schema that was given: {', '.join(found.names)}")
        return found
