"""`python -m benchmarks.spark.run [CASE …]` (make bench-spark): rounds over all readers, and a page of its own.

Readers take turns within a round and begin with another one each round. The appliance and Apache Kafka run all the
time; what the appliance's processes use while its files are scanned is measured, and must be nothing.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import guard, machine, proc
from benchmarks.brokers import MAKERS
from benchmarks.brokers.broker import Broker
from benchmarks.brokers.setting import AS_SHIPPED
from benchmarks.goals import remarks
from benchmarks.places import CACHE, DATA, RESULTS, ROOT
from benchmarks.source import name_of_now
from benchmarks.spark import data as sets
from benchmarks.spark.cases import QUERIES, Places, Query, readers
from benchmarks.spark.ceiling import CeilingSource
from benchmarks.spark.latency import latencies_ms, p50_p99, streams
from benchmarks.spark.verdicts import Seconds, SparkRun, kept_pages, read_run, rows, verdicts
from benchmarks.void import Void
from spark_connector.session import session

LATENCY = "spark_latency"
MIB = 512
JARS = ROOT / ".cache" / "spark-kafka" / "libs"
TITLES = {
    "appliance": "connector",
    "told": "connector, told what is needed",
    "kafka": "spark-sql-kafka",
    "parquet": "Parquet",
    "ceiling": "ceiling",
}


def main() -> int:
    """Writes the page and prints it. The exit status is 1 when two readers differ about the records, or a row fell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.run")
    names = [query.name for query in QUERIES] + [LATENCY]
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"of {', '.join(names)}; all when none is given"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=MIB, help="payload of each data set")
    parser.add_argument("--sets", default="", help="of 100_none, 100_lz4, 1k_none, 1k_lz4, with commas")
    parser.add_argument("--latency-seconds", type=float, default=30)
    parser.add_argument(
        "--build", default="appliance", choices=("appliance", "pure"), help="compiled, or not"
    )
    parser.add_argument("--without-kafka", action="store_true")
    options = parser.parse_args()
    chosen = options.cases or names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(names)}")
    # A broker must not outlive the harness: SIGTERM unwinds as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as directory:
        return _measure(options, [name for name in names if name in chosen], Path(directory))


def _measure(options: argparse.Namespace, chosen: list[str], at: Path) -> int:
    began = datetime.now(UTC).isoformat(timespec="seconds")
    wanted = [
        each for each in sets.data_sets(options.mib << 20) if not options.sets or each.name in options.sets
    ]
    queries = [query for query in QUERIES if query.name in chosen]
    for name in ("appliance", "kafka"):
        (at / name).mkdir()
    appliance = MAKERS[options.build](at / "appliance", AS_SHIPPED)
    kafka, missing = (None, "not asked for") if options.without_kafka else _kafka(at / "kafka")
    if missing:
        _say(f"kafka: {missing}")
    with appliance:
        try:
            brokers = [appliance, *([kafka] if kafka else [])]
            if queries:
                _fill(wanted, brokers, at)
            places = Places(at / "appliance" / "kept", kafka.address if kafka else "", at / "parquet")
            spark = _session(at)
            used_s, seconds, wrong = _rounds(
                spark,
                options.rounds,
                wanted=wanted,
                queries=queries,
                places=places,
                appliance=appliance,
            )
            slow = _latency(spark, places, brokers, options.latency_seconds) if LATENCY in chosen else {}
            spark.stop()
        finally:
            if kafka is not None:
                kafka.stop()
    kept = {
        "began": began,
        "machine": machine.description(),
        "seconds": {"|".join(key): found for key, found in seconds.items()},
        "rows": {each.name: each.rows for each in wanted},
        "value_bytes": {each.name: each.value_bytes for each in wanted},
        "broker_cpu_s": used_s,
        "latency_ms": slow,
    }
    whole = not (options.cases or options.sets or missing) and options.mib == MIB
    stem = (RESULTS if whole else CACHE / "results") / "spark" / name_of_now()
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
    run = SparkRun({each.name: each.payload_bytes for each in wanted}, seconds, used_s, slow)
    text = page(wanted, queries, run, rounds=options.rounds, missing=missing)
    fell = False
    # A part of it, or less to read, is no run to compare.
    if whole and (pages := kept_pages(but=stem.with_suffix(".md"), machine=machine.description())):
        before = [rows(read_run(each)) for each in pages]
        text += f"\n{guard.told(rows(run), *before, since=pages[-1].stem)}\n"
        fell = bool(guard.fallen(rows(run), *before))
    stem.with_suffix(".md").write_text(text)
    print(text)
    for line in wrong:
        print(f"readers differ: {line}", file=sys.stderr)
    return 1 if wrong or fell else 0


def _kafka(data_dir: Path) -> tuple[Broker | None, str]:
    """Apache Kafka, running; or why it cannot be had, and then the readers of it are left out."""
    if not any(JARS.glob("*.jar")):
        return None, "spark-sql-kafka is missing: scripts/install-spark-kafka.sh laid down no jars"
    try:
        kafka = MAKERS["kafka"](data_dir, AS_SHIPPED)
        kafka.start()
    except Void as why:
        return None, str(why)
    return kafka, ""


def _fill(wanted: list[sets.DataSet], brokers: list[Broker], at: Path) -> None:
    for each in wanted:
        for broker in brokers:
            _say(f"{each.name}: {each.rows} records to {broker.name}")
            broker.create_topic(each.name, sets.PARTITIONS)
            sets.produce(each, broker.address)
        sets.write_parquet(each, at / "parquet" / each.name)
    sets.settle()


def _session(at: Path) -> SparkSession:
    jars = sorted(map(str, JARS.glob("*.jar")))
    spark = session(
        "benchmarks",
        "local[2]",
        settings={
            "spark.jars": ",".join(jars),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.local.dir": str(at / "local"),
            "spark.log.level": "ERROR",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(at / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    spark.dataSource.register(CeilingSource)
    return spark


def _rounds(
    spark: SparkSession,
    rounds: int,
    *,
    wanted: list[sets.DataSet],
    queries: list[Query],
    places: Places,
    appliance: Broker,
) -> tuple[float, Seconds, list[str]]:
    """Processor time of the appliance during its scans, the wall times, and where readers differ."""
    seconds: Seconds = defaultdict(list)
    used_s, wrong = 0.0, []
    asked = readers(places)
    if not places.kafka:
        del asked["kafka"]
    for number in range(rounds + 1):  # the first one warms everything up
        for each in wanted:
            for query in queries:
                names = [name for name in asked if not (name == "ceiling" and query.name == "spark_window")]
                turn = number % len(names)
                answers = {}
                for name in names[turn:] + names[:turn]:
                    before = proc.sample(appliance.pids())
                    began = time.monotonic()
                    answers[name] = asked[name](spark, each, query)
                    taken = time.monotonic() - began
                    if number:
                        seconds[query.name, each.name, name].append(taken)
                        if name in ("appliance", "told"):
                            used_s += proc.used(before, proc.sample(appliance.pids())).cpu_seconds
                answers.pop("ceiling", None)
                if len(set(answers.values())) > 1:
                    wrong.append(f"{query.name} of {each.name}: {answers}")
                _say(f"round {number}: {query.name} of {each.name}")
    return used_s, seconds, wrong


def _latency(
    spark: SparkSession, places: Places, brokers: list[Broker], seconds: float
) -> dict[str, dict[str, float]]:
    found = {}
    for reader, broker in zip(("appliance", "kafka"), brokers, strict=False):
        topic = "latency"
        broker.create_topic(topic, 1)
        _say(f"{LATENCY} of {broker.name}")
        times = latencies_ms(
            spark, streams(spark, places, topic)[reader](), broker.address, topic, seconds=seconds
        )
        p50, p99 = p50_p99(times)
        found[reader] = {"p50": p50, "p99": p99, "records": len(times)}
    return found


def page(
    wanted: list[sets.DataSet], queries: list[Query], run: SparkRun, *, rounds: int, missing: str = ""
) -> str:
    """Tables of medians, and the goals; of those that were missed why, and what comes next. `missing`: why Kafka is."""
    about = ", ".join(f"{key} {value}" for key, value in machine.description().items())
    lines = [
        f"# Spark, {name_of_now()}",
        "",
        f"{about}. `local[2]`; medians of {rounds} rounds, wall time.",
        "",
        *([f"**kafka is missing.** This page has no ratios to it: {missing}.", ""] if missing else []),
    ]
    for query in queries:
        shown = [
            name for name in TITLES if any(key[0] == query.name and key[2] == name for key in run.seconds)
        ]
        lines += [
            f"## {query.name}: {query.what}",
            "",
            f"| records | {' | '.join(f'{TITLES[name]}, s' for name in shown)} | M rows/s | MB/s |",
            f"|---|{'--:|' * (len(shown) + 2)}",
        ]
        for each in wanted:
            medians = {name: run.median(query.name, each.name, name) for name in shown}
            best = medians.get("appliance") or 0.0
            rate = each.rows / best / 1e6 if best else 0.0
            cells = [f"{medians[name]:.2f}" for name in shown]
            row = [f"{rate:.2f}", f"{each.payload_bytes / best / 1e6:.0f}" if best else "-"]
            lines.append(f"| {each.name.replace('_', ' B, ', 1)} | {' | '.join(cells + row)} |")
        lines.append("")
    if run.slow:
        lines += [
            f"## {LATENCY}: from produce to row, a micro-batch after another",
            "",
            "| | p50, ms | p99, ms | records |",
            "|---|--:|--:|--:|",
            *(
                f"| {TITLES[name]} | {each['p50']:.0f} | {each['p99']:.0f} | {each['records']} |"
                for name, each in run.slow.items()
            ),
            "",
        ]
    lines += ["## Goals", "", "| goal | bound | measured | |", "|---|---|--:|---|"]
    found = verdicts(run)
    lines += [
        f"| {each.what} | {each.bound} | {each.value} | {'reached' if each.reached else 'missed'} |"
        for each in found
    ]
    if not all(each.reached for each in found) and (said := remarks().get("spark")):
        lines += ["", f"**Why**: {said.why}", "", f"**Next**: {said.next}"]
    return "\n".join(lines) + "\n"


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
