"""`appliance export parquet`: a topic's records as Parquet files by date, each exactly once, with or without Spark."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from appliance.cli.options import data_dirs_option, data_paths
from appliance.cli.output import json_option, print_json, shown_bytes
from appliance.errors import OperatorFault
from appliance.extras import is_installed, need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_connector.export.job import Progress

CODECS: Final = ("zstd", "lz4", "snappy", "gzip", "none")
ISOLATION: Final = ("read_committed", "read_uncommitted")


@click.command(short_help="Write a topic's records to Parquet files, by date.")
@click.argument("topic")
@click.option(
    "--to",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    help="Target directory. If it holds an export of the topic, only new records are added.",
)
@data_dirs_option
@click.option(
    "--master",
    metavar="URL",
    help="Run on this Spark master, such as spark://host:7077 or local[4].  [default: without Spark, on all cores]",
)
@click.option("--isolation", type=click.Choice(ISOLATION), default=ISOLATION[0], show_default=True)
@click.option("--durable", is_flag=True, help="Export only records that are flushed to disk.")
@click.option("--without-headers", is_flag=True, help="Do not export the column headers.")
@click.option("--codec", type=click.Choice(CODECS), default=CODECS[0], show_default=True)
@click.option(
    "--task-mib",
    type=click.IntRange(1, 4096),
    default=128,
    show_default=True,
    help="Bytes of log that one task reads.",
)
@click.option(
    "--skip-lost", is_flag=True, help="Continue even if records were deleted before they were exported."
)
@json_option
def parquet(
    *,
    topic: str,
    to: Path,
    data_dirs: tuple[str, ...],
    master: str | None,
    isolation: str,
    durable: bool,
    without_headers: bool,
    codec: str,
    task_mib: int,
    skip_lost: bool,
    as_json: bool,
) -> None:
    """Write the records of TOPIC to Parquet files under DIR/date=YYYY-MM-DD, by the UTC day of their timestamps.

    The command reads the disk up to the current end of the topic. It needs no broker and connects to none. Each record
    is in exactly one file. If the command is killed, run it again and it continues. Run it later to add new records.
    """
    for package in ("pyarrow",) if master is None else ("pyarrow", "pyspark"):
        need(package, needed_by="export parquet" if master is None else "export parquet --master")
    from spark_connector.directory import Directories, Isolation
    from spark_connector.errors import DataLost
    from spark_connector.export.job import export_parquet

    paths = data_paths(data_dirs)
    Directories(paths).partitions(
        topic
    )  # what is asked for wrongly is said before Spark takes seconds to start
    began_s = time.monotonic()
    with _spark(master) as spark, _progress(topic) as tell:
        try:
            result = export_parquet(
                spark,
                topic,
                paths=paths,
                to=to,
                isolation=Isolation(isolation),
                headers=not without_headers,
                durable=durable,
                codec=codec,
                split_bytes=task_mib << 20,
                skip_lost=skip_lost,
                tell=tell,
            )
        except DataLost as lost:
            raise OperatorFault(f"{lost}; --skip-lost exports the rest") from lost
    facts = {
        "topic": topic,
        "to": str(to),
        "rows": result.rows,
        "files": result.files,
        "bytes": result.size_bytes,
        "lost": result.lost,
    }
    if as_json:
        print_json(facts)
        return
    taken_s = time.monotonic() - began_s
    click.echo(
        f"{result.rows} records in {result.files} files, {shown_bytes(result.size_bytes)}, {taken_s:.1f} s: {to}"
    )
    if result.lost:
        click.echo(f"appliance: {result.lost} offsets were deleted before they were exported", err=True)


@contextmanager
def _spark(master: str | None) -> Iterator[SparkSession | None]:
    """A session that logs nothing but errors, ended with the body; None where no master is given."""
    if master is None:
        yield None
        return
    from spark_connector.archive import build
    from spark_connector.session import session
    from spark_connector.start_up_talk import start_up_talk_hidden

    settings = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    with start_up_talk_hidden():
        spark = session("appliance export parquet", master, settings=settings)
    try:
        with tempfile.TemporaryDirectory() as directory:
            if not master.startswith("local"):
                archive = Path(directory, "log-appliance.zip")
                build(archive)
                spark.sparkContext.addPyFile(str(archive))
            yield spark
    finally:
        spark.stop()


@contextmanager
def _progress(topic: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty() or not is_installed("rich"):
        yield lambda _: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("ranges, {task.fields[rows]} records"),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as shown:
        bar = shown.add_task(topic, total=None, rows=0)
        yield lambda far: shown.update(bar, total=far.ranges, completed=far.done, rows=far.rows)
