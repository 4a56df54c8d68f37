"""Side-by-side figures: the appliance beside librdkafka's in-memory mock, and beside Apache Kafka.

`python -m benchmarks --help`; the page beside this file says what is measured, how, and what it is worth.
"""
