"""What PySpark finds by itself: it imports every top-level package named `pyspark_…` and asks for `DefaultSource`."""
