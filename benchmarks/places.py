"""Where the benchmarks find and leave their files, all inside the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
"""Compiled generators, data directories of running brokers, flame graphs: never committed."""
RESULTS = ROOT / "benchmarks" / "results"
LIBRDKAFKA = ROOT / ".cache" / "librdkafka" / "source"
"""Source tree built by scripts/install-librdkafka.sh, private headers included."""
KAFKA = ROOT / ".cache" / "kafka"
"""Jars laid by scripts/install-kafka.sh."""
