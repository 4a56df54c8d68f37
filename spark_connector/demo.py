"""`make demo-spark`: events from a Kafka client, windows over the stream, a join with a batch read, Parquet, a table.

It starts a broker of its own in a directory that it removes, so it shows the whole way and leaves only what is to be
kept: the Parquet files and a plot.
"""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_connector.session import session
from spark_connector.start_up_talk import start_up_talk_hidden
from spark_connector.topics import topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGES: Final = ("home", "search", "product", "basket", "checkout")
COUNTRIES: Final = {"ann": "NO", "bob": "SE", "cas": "NL", "dee": "PT", "eve": "IT"}
EVENTS_A_SECOND: Final = 400
WINDOW: Final = "2 seconds"
READY_S: Final = 120.0


def main(arguments: list[str]) -> int:
    """`[DIR [SECONDS]]`: below which the Parquet files and the plot go, and for how long events are produced."""
    target = Path(arguments[0] if arguments else "demo-spark", time.strftime("%Y%m%d-%H%M%S"))
    seconds = float(arguments[1]) if len(arguments) > 1 else 15.0
    with tempfile.TemporaryDirectory(prefix="demo-spark-") as directory:
        work = Path(directory)
        with _broker(work / "data") as address:
            _say(f"broker on {address}, data in {work / 'data'}")
            spark = _session(work)
            _create(address, "users", "visits")
            _users(address)
            with _visitors(address) as sent:
                query = _windows(spark, work, target)
                _say(f"stream of windows runs for {seconds:.0f} s …")
                query.awaitTermination(int(seconds))
            query.processAllAvailable()
            query.stop()
        _say(f"{sent[0]} events produced; the broker is stopped, the rest is read off its disk")
        counted = topic(spark, "visits", path=work / "data").count()
        table = spark.read.parquet(str(target / "windows")).toArrow().to_pylist()
        _show(table, counted)
        _plot(table, target)
        spark.stop()
    _say(f"kept: {target / 'windows'}")
    return 0 if counted == sent[0] == sum(row["visits"] for row in table) else 1


def _windows(spark: SparkSession, work: Path, target: Path) -> Any:
    """The stream: visits of each window and country, each micro-batch written whole to a file of its own number."""
    from pyspark.sql import functions as f

    users = topic(spark, "users", path=work / "data").select(
        f.col("key").cast("string").alias("user"), f.col("value").cast("string").alias("country")
    )
    visits = (
        spark.readStream.format("appliance")
        .options(path=str(work / "data"), subscribe="visits", startingOffsets="earliest")
        .load()
        .select(
            f.from_json(f.col("value").cast("string"), "user string, page string").alias("visit"), "timestamp"
        )
        .select("visit.*", "timestamp")
    )

    def write(batch: DataFrame, number: int) -> None:
        counted = (
            batch.join(users, "user")
            .groupBy(f.window("timestamp", WINDOW).start.alias("begin"), "country")
            .agg(f.count("*").alias("visits"))
        )
        # A micro-batch that is repeated after a crash writes over what it wrote: each visit counts once.
        counted.coalesce(1).write.mode("overwrite").parquet(str(target / "windows" / f"batch={number}"))

    return (
        visits.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


def _show(table: list[dict[str, Any]], counted: int) -> None:
    from rich.console import Console
    from rich.table import Table

    by_country: dict[str, int] = {}
    for row in table:
        by_country[row["country"]] = by_country.get(row["country"], 0) + row["visits"]
    most = max(by_country.values(), default=1)
    shown = Table("country", "visits", "", title=f"visits by country ({counted} records in the topic)")
    for country, visits in sorted(by_country.items(), key=lambda each: -each[1]):
        shown.add_row(country, str(visits), "█" * round(30 * visits / most))
    Console().print(shown)


def _plot(table: list[dict[str, Any]], target: Path) -> None:
    """Visits over time as a picture; without matplotlib the table must do."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        _say("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    begins = sorted({row["begin"] for row in table})
    figure, axes = pyplot.subplots(figsize=(9, 4))
    below = [0] * len(begins)
    for country in sorted({row["country"] for row in table}):
        heights = [
            sum(row["visits"] for row in table if row["begin"] == begin and row["country"] == country)
            for begin in begins
        ]
        axes.bar([f"{begin:%H:%M:%S}" for begin in begins], heights, bottom=below, label=country)
        below = [one + other for one, other in zip(below, heights, strict=True)]
    axes.set_ylabel(f"visits in {WINDOW}")
    axes.tick_params(axis="x", rotation=60)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(target / "windows.png", dpi=120)
    _say(f"plot: {target / 'windows.png'}")


# The producing side: a broker, and Kafka clients as anybody's.


@contextmanager
def _broker(data_dir: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "appliance", "serve", "--data-dir", str(data_dir), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        guard = threading.Timer(READY_S, process.kill)
        guard.start()
        said = []
        try:
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"ready on (\S+)", line):
                    guard.cancel()
                    threading.Thread(target=process.stdout.read, daemon=True).start()
                    yield found[1]
                    return
            raise SystemExit("the broker did not start:\n" + "".join(said))
        finally:
            guard.cancel()
            process.terminate()
            process.wait(READY_S)


def _create(address: str, *names: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": address})
    for each in admin.create_topics([NewTopic(name, 2) for name in names]).values():
        each.result(READY_S)


def _users(address: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address})
    for user, country in COUNTRIES.items():
        producer.produce("users", country.encode(), user.encode())
    producer.flush(READY_S)


@contextmanager
def _visitors(address: str) -> Iterator[list[int]]:
    """Events, until the body ends. Yields a list whose only item is how many."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "compression.type": "lz4", "linger.ms": 20})
    sent, stop, chance = [0], threading.Event(), random.Random(1)

    def send() -> None:
        while not stop.wait(1 / 20):
            for _ in range(EVENTS_A_SECOND // 20):
                user = chance.choice(list(COUNTRIES))
                event = {"user": user, "page": chance.choice(PAGES)}
                producer.produce("visits", json.dumps(event).encode(), user.encode())
                sent[0] += 1
            producer.poll(0)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()
        producer.flush(READY_S)


def _session(work: Path) -> SparkSession:
    with start_up_talk_hidden():
        return session(
            "demo",
            "local[*]",
            settings={
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.local.dir": str(work / "local"),
                "spark.log.level": "ERROR",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(work / "warehouse"),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
            },
        )


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
