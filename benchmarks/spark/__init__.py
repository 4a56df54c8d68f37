"""The connector beside what else Spark can read: the same records from Apache Kafka, from Parquet, and a ceiling."""
