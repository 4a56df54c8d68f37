"""What PySpark finds by itself: it imports every top-level package named `pyspark_…` and asks for `DefaultSource`."""

from spark_connector.data_source import ApplianceDataSource as DefaultSource

__all__ = ["DefaultSource"]
