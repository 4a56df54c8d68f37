"""What a test waits for when it starts a broker of its own.

Testcontainers is not measured, because it needs Docker. Apache Kafka is started directly, as a fixture without a
container would do it: format, start, first record. A container does the same work, after its own start.
"""

import statistics

from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.cases.footprint import NOT_FOR_MOCK

BROKERS = 4
"""Started one after another. The first one of a test run may load what the others find loaded."""


def _fixture(bench: Bench) -> Figures:
    bench.broker.stop()  # the case's own, which would use memory and processors
    first, *others = bench.broker.fixture_seconds(BROKERS)
    return {"first_ack_ms": first * 1e3, "next_ack_ms": statistics.median(others) * 1e3}


CASES = (
    Case(
        "fixture",
        "a broker for one test: from the call to the first acknowledged record, first and further brokers of a run",
        _fixture,
        not_for=NOT_FOR_MOCK,
        rounds=3,
        by_name=True,
        own=True,
    ),
)
