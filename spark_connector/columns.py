"""The columns of a query: Spark's types of them, and Arrow's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_connector.option_values import InvalidOption
from spark_connector.options import View
from spark_connector.views import SCHEMAS

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}
"""As in spark-sql-kafka; all may be null there, so they are here."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns, in the order in which they are read."""

    names: tuple[str, ...]
    arrow: pa.Schema

    @classmethod
    def of(cls, schema: StructType, known: dict[str, DataType] = TYPES) -> Columns:
        """The columns of a schema, the source's own or one that the user gave.

        Raises:
            InvalidOption: a column that is not known, or of another type.
        """
        names = {name.lower(): name for name in known}
        for field in schema.fields:
            name = names.get(field.name.lower())
            if name is None:
                raise InvalidOption("schema", f"column {field.name} is none of {', '.join(known)}")
            if _bare(field.dataType) != _bare(known[name]):
                wanted = known[name].simpleString()
                raise InvalidOption(
                    "schema", f"column {name} is {wanted}, not {field.dataType.simpleString()}"
                )
        arrow = to_arrow_schema(schema, timezone="UTC")
        return cls(tuple(names[field.name.lower()] for field in schema.fields), arrow)


def schema_of(names: tuple[str, ...], known: dict[str, DataType] = TYPES) -> StructType:
    """The Spark schema of some columns."""
    return StructType([StructField(name, known[name]) for name in names])


def types_of(view: View) -> dict[str, DataType]:
    """The columns of a view and their Spark types."""
    if view is View.RECORDS:
        return TYPES
    return {field.name: field.dataType for field in from_arrow_schema(SCHEMAS[view]).fields}


def _bare(kind: DataType) -> str:
    # The same but for nullability, which Arrow is told as the schema says it.
    return kind.simpleString().lower()
