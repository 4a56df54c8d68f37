"""Taking over log directories that Apache Kafka wrote: `plan` decides, `carry_out` does."""
