"""`appliance bench`: a minute of load against a broker of its own, or any other; a table to paste into an issue.

Without --bootstrap it starts a broker in a temporary directory, and removes both at the end, after Ctrl-C, and if it
is killed itself: the broker ends with the process that started it. With --bootstrap it makes a topic and deletes it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import click
from click.core import ParameterSource

from appliance.cli.bench_host import DISK_TEST_BYTES, fact_rows, host_facts
from appliance.cli.bench_load import consume, produce
from appliance.cli.client import admin_client, answer_of, asked, bootstrap_of
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.ended_by_signal import ends_by_signal
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json
from appliance.cli.perf_latency import latency_figures
from appliance.errors import OperatorFault

RECORD_BYTES: Final = 1024
SMALL_BYTES: Final = 100
LATENCY_RATE: Final = 200.0
DATA_BYTES_MAX: Final = 4 << 30
"""What the load writes at most; of a disk with less room, a quarter of that."""
STOP_TIMEOUT_S: Final = 20.0
START_TIMEOUT_S: Final = 60.0
_LINES_OF_FAILURE: Final = 5


@click.command(short_help="Measure a broker for a minute; print a table for an issue.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=2, max=3600),
    default=60.0,
    show_default=True,
    help="Time of the whole load.",
)
@click.option("--partitions", "-p", type=click.IntRange(min=1, max=100), default=1, show_default=True)
@click.option(
    "--dir",
    "place",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Put the broker's temporary directory here, to measure this disk.  [default: $TMPDIR, or /tmp]",
)
@json_option
@client_options
def bench(*, seconds: float, partitions: int, place: Path | None, as_json: bool, bootstrap: str) -> None:
    """Measure a broker with one client, and print a table in Markdown.

    Without --bootstrap the command starts a broker of its own, in a temporary directory that it removes. With
    --bootstrap it measures that broker, in a topic that it creates and deletes.
    """
    is_own = click.get_current_context().get_parameter_source("bootstrap") is ParameterSource.DEFAULT
    if is_own and bootstrap_of(bootstrap) != bootstrap:
        is_own, bootstrap = False, bootstrap_of(bootstrap)
    if not is_own and place is not None:
        raise click.UsageError("--dir is for a broker of the command's own; leave --bootstrap out")
    with ends_by_signal():
        if is_own:
            with own_broker(place) as (address, directory):
                facts = host_facts(directory)
                told = _measured(address, seconds, partitions, _bytes_max(facts))
                told["broker"] = "its own, 1 slot"
        else:
            facts = host_facts(None)
            told = _measured(bootstrap, seconds, partitions, DATA_BYTES_MAX)
            told["broker"] = "given by --bootstrap"
    told["host"] = facts
    if as_json:
        print_json(told)
    else:
        click.echo(table(told))


def _bytes_max(facts: dict[str, Any]) -> int:
    free = facts["disk"]["free_bytes"]
    return int(min(DATA_BYTES_MAX, free // 4))


@contextmanager
def own_broker(place: Path | None) -> Iterator[tuple[str, Path]]:
    """A broker in a temporary directory; its address, and the directory. Both are gone afterwards.

    Raises:
        OperatorFault: it does not start; the text has its last lines.
    """
    from appliance.control.supervisor.scratch import Scratch

    held = Scratch.make(Path(tempfile.gettempdir()) if place is None else place.resolve())
    process: subprocess.Popen[str] | None = None
    try:
        room = os.statvfs(held.path)
        if room.f_bavail * room.f_frsize < 4 * DISK_TEST_BYTES:
            raise OperatorFault(
                f"{held.path.parent}: less than {4 * DISK_TEST_BYTES >> 20} MiB are free; use --dir"
            )
        with tempfile.TemporaryFile(mode="w+") as errors:
            process = _started(held.path, errors)
            yield _address(process, errors), held.path
    finally:
        if process is not None:
            _stop(process)
        held.remove()


def _started(directory: Path, errors: IO[str]) -> subprocess.Popen[str]:
    from appliance.config import Settings

    command = [
        sys.executable, "-m", "appliance", "serve", "--ephemeral", "--json", "--scratch", str(directory),
        # Tests want few processes; this is how a service runs.
        "--set", f"network.processes={Settings().network.processes}",
    ]  # fmt: skip
    from appliance.cli.ephemeral import PARENT_VARIABLE

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        # Ctrl-C is for this command, which stops the broker in good order.
        start_new_session=True,
        env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
    )


def _address(process: subprocess.Popen[str], errors: IO[str]) -> str:
    import select

    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
    line = process.stdout.readline() if ready else ""
    try:
        return str(json.loads(line)["bootstrap_servers"])
    except (ValueError, KeyError):
        errors.seek(0)
        last = " / ".join(errors.read().splitlines()[-_LINES_OF_FAILURE:])
        raise OperatorFault(f"the broker did not start: {last or 'it printed nothing'}") from None


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _measured(bootstrap: str, seconds: float, partitions: int, bytes_max: int) -> dict[str, Any]:
    """Run the loads one after the other; the keys are stable."""
    topic = f"appliance-bench-{uuid.uuid4().hex[:12]}"
    client = admin_client(bootstrap)
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    pending = client.create_topics([NewTopic(topic, num_partitions=partitions)])
    answer_of(pending[topic])
    try:
        return {
            "seconds": seconds,
            "partitions": partitions,
            "results": {
                name: measure()
                for name, measure in _loads(bootstrap, topic, seconds, bytes_max)
                if _say(name)
            },
        }
    finally:
        with suppress(BrokerError):
            pending = asked(lambda: client.delete_topics([topic], operation_timeout=REQUEST_TIMEOUT_S))
            answer_of(pending[topic])


def _say(name: str) -> bool:
    if sys.stderr.isatty():
        click.echo(f"measuring: {name}", err=True)
    return True


def _loads(
    bootstrap: str, topic: str, seconds: float, bytes_max: int
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield each load with its name. What waits in the client is little, because it is sent after the time is over."""
    batched: dict[str, object] = {
        "linger.ms": 5,
        "batch.size": 1 << 20,
        "queue.buffering.max.messages": 20_000,
    }
    single: dict[str, object] = {
        "linger.ms": 0,
        "batch.num.messages": 1,
        "max.in.flight": 5,
        "queue.buffering.max.messages": 1_000,
    }
    yield (
        "produce",
        lambda: produce(
            bootstrap, topic, seconds=seconds * 0.3, size=RECORD_BYTES, bytes_max=bytes_max, options=batched
        ),
    )
    yield "consume", lambda: consume(bootstrap, topic, seconds=seconds * 0.2)
    yield (
        "single",
        lambda: produce(
            bootstrap, topic, seconds=seconds * 0.25, size=SMALL_BYTES, bytes_max=bytes_max, options=single
        ),
    )
    yield (
        "latency",
        lambda: latency_figures(
            bootstrap,
            topic,
            records=max(20, int(seconds * 0.2 * LATENCY_RATE)),
            size=SMALL_BYTES,
            rate=LATENCY_RATE,
            acks="all",
        ),
    )


def table(told: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    results = told["results"]
    rows = [
        *fact_rows(told["host"]),
        (
            "broker",
            f"{told['broker']}, {told['partitions']} partition{'' if told['partitions'] == 1 else 's'}",
        ),
        ("produce, 1 KiB records, acks=all", _throughput(results["produce"])),
        ("consume", _throughput(results["consume"])),
        (
            "produce, one record of 100 bytes a request",
            f"{results['single']['records_per_second']:,.0f} requests/s",
        ),
        (f"acknowledged, at {LATENCY_RATE:.0f} records/s", _latency(results["latency"]["acknowledged_ms"])),
        (f"consumed, at {LATENCY_RATE:.0f} records/s", _latency(results["latency"]["consumed_ms"])),
    ]
    lines = [f"| appliance bench | {told['seconds']:g} s |", "|---|---|"]
    lines += [f"| {name} | {value.replace('|', '/')} |" for name, value in rows]
    return "\n".join(lines)


def _throughput(result: dict[str, Any]) -> str:
    return f"{result['records_per_second']:,.0f} records/s, {result['megabytes_per_second']:,.1f} MB/s"


def _latency(figures: dict[str, Any]) -> str:
    return f"p50 {figures['p50']:g} ms, p99 {figures['p99']:g} ms, max {figures['max']:g} ms"
