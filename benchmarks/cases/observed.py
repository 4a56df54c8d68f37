"""What the message audit and a trace of one in a hundred records cost a stream of 1 KiB records, in turns.

| figure | of what |
|---|---|
| `plain_in_mb_s` | a topic without audit and trace |
| `audit_in_mb_s`, `ids_in_mb_s` | one with `audit.enable`; with `audit.headers`, too |
| `trace_in_mb_s` | one with `trace.enable` and `trace.sample = 100` |
| `…_cost` | by what share it is slower than plain: the median of the turns. Below 0.03 is the goal of audit and trace |
| `…_services_cpu_s_per_gb` | processor time of the services process, up to REST_S after the stream |

Each turn streams into a fresh topic of each way, and the order changes from turn to turn. The services process works
about a second behind the stream. It has REST_S to finish before the next stream begins, and so does not slow that one.
"""

import time
from statistics import median
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.void import Void

WAYS: Final = {
    "plain": {},
    "audit": {"audit.enable": "true"},
    "trace": {"trace.enable": "true", "trace.sample": "100"},
    "ids": {"audit.enable": "true", "audit.headers": "true"},
}
TURNS: Final = 4
RECORD_BYTES: Final = 1024
REST_S: Final = 4
PATIENCE_SECONDS: Final = 60.0
GB: Final = 1e9


def _topic(bench: Bench, way: str, turn: int) -> str:
    name = f"{bench.topic()}-{way}-{turn}"
    client = AdminClient({"bootstrap.servers": bench.broker.address})
    try:
        client.create_topics([NewTopic(name, 1, 1, config=WAYS[way])])[name].result(PATIENCE_SECONDS)
    except Exception as error:
        raise Void(f"topic {name} was not created: {error}") from error
    bench.topics.append(name)
    return name


def _in_turns(bench: Bench) -> Figures:
    records = bench.scale.stream_bytes // RECORD_BYTES // TURNS
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    services_s = dict.fromkeys(WAYS, 0.0)
    names = list(WAYS)
    for turn in range(TURNS):
        for way in names[turn % len(names) :] + names[: turn % len(names)]:
            topic = _topic(bench, way, turn)
            with bench.measure() as broker:
                sent = generators.stream_in(
                    bench.broker.address, topic, records=records, record_bytes=RECORD_BYTES, partition=0
                )
                time.sleep(REST_S)
            bench.check_records(topic, records)
            rates[way].append(sent.mb_s)
            services_s[way] += sum(
                seconds
                for title, seconds in broker.used.cpu_seconds_by_title.items()
                if title.startswith("services")
            )
    figures: Figures = {}
    streamed_gb = records * RECORD_BYTES * TURNS / GB
    for way, found in rates.items():
        figures[f"{way}_in_mb_s"] = median(found)
        figures[f"{way}_services_cpu_s_per_gb"] = services_s[way] / streamed_gb
        if way != "plain":
            pairs = zip(found, rates["plain"], strict=True)
            figures[f"{way}_cost"] = 1 - median(observed / plain for observed, plain in pairs)
    return figures


CASES = (
    Case(
        "observed_1k",
        "1 KiB records streamed into a plain, an audited and a traced topic, in turns",
        _in_turns,
        not_for=frozenset({"mock", "kafka"}),
        settings=frozenset({"delayed"}),
        by_name=True,
    ),
)
