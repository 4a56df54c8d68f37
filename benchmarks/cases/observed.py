"""What the message audit and a trace of one in a hundred keys cost a stream of 1 KiB records, in turns.

| figure | of what |
|---|---|
| `plain_in_mb_s` | a topic without audit and trace |
| `audit_in_mb_s`, `ids_in_mb_s` | one with `audit.enable`; with `audit.headers`, too |
| `trace_in_mb_s` | one with `trace.enable` and `trace.sample = 100` |
| `…_cost` | by what share it is slower than plain: the median of the turns. Below 0.03 is the goal of audit and trace |
| `…_services_cpu_s_per_gb` | processor time of the services process, until it has read the stream to its end |
| `…_services_s_per_stream_s` | for how long it reads after the end of a stream, as a share of the stream's time |

Each turn streams into a fresh topic of each way, and the order changes from turn to turn. The services process works
beside the stream and after it. So a stream is followed by a wait until that process rests: it is at rest after REST_S
in which it used less than REST_CPU_S.
"""

import time
from statistics import median
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import proc
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
PATIENCE_SECONDS: Final = 60.0
LONGER: Final = 2
"""A stream is so many times one of a case of throughput: about a second."""
REST_S: Final = 1.5
REST_CPU_S: Final = 0.03
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


def _await_rest(pids: list[int]) -> float:
    """Wait until the services process has nothing to do; return for how many seconds it had."""
    began = time.monotonic()
    before = proc.sample(pids)
    while time.monotonic() - began < PATIENCE_SECONDS:
        time.sleep(REST_S)
        now = proc.sample(pids)
        if proc.used(before, now).cpu_seconds < REST_CPU_S:
            return max(time.monotonic() - began - REST_S, 0.0)
        before = now
    raise Void(f"the services process does not rest within {PATIENCE_SECONDS:.0f} s")


def _in_turns(bench: Bench) -> Figures:
    records = bench.scale.stream_bytes * LONGER // RECORD_BYTES
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    services_s = dict.fromkeys(WAYS, 0.0)
    after_s = dict.fromkeys(WAYS, 0.0)
    services = [pid for pid in bench.broker.pids() if proc.title_of(pid).startswith("services")]
    client = AdminClient({"bootstrap.servers": bench.broker.address})
    names = list(WAYS)
    for turn in range(TURNS):
        for way in names[turn % len(names) :] + names[: turn % len(names)]:
            topic = _topic(bench, way, turn)
            with bench.measure() as broker:
                sent = generators.stream_in(
                    bench.broker.address, topic, records=records, record_bytes=RECORD_BYTES, partition=0
                )
                after_s[way] += _await_rest(services)
            bench.check_records(topic, records)
            client.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
            bench.topics.remove(topic)
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
        figures[f"{way}_services_s_per_stream_s"] = after_s[way] / (streamed_gb * 1e3 / median(found))
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
