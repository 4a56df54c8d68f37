"""Where the benchmarks find and leave their files, all inside the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
"""Compiled generators, flame graphs, pages of partial runs: never committed."""
DATA = CACHE / "data"
"""Data directories of the brokers of a run, each gone after its round."""
RESULTS = ROOT / "benchmarks" / "results"
LIBRDKAFKA = ROOT / ".cache" / "librdkafka" / "source"
"""Source tree built by scripts/install-librdkafka.sh, private headers included."""
KAFKA = ROOT / ".cache" / "kafka"
"""Jars laid by scripts/install-kafka.sh."""
