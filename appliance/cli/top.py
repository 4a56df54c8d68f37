"""`appliance top`: a running appliance, or any cluster, as it is now: processes, topics and groups, again and again.

On a terminal the picture is drawn in place, as large as the terminal. In a pipe, or with `--once`, it is text; with
`--json` one object a line.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from appliance.cli.client import admin_client
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.top_sample import Sample, changes, sample
from appliance.cli.top_tables import PROCESS_RIGHT, group_table, headline, process_table, topic_table
from appliance.errors import OperatorFault
from appliance.extras import is_installed

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ROWS_MAX: Final = 20
"""Topics and groups that text shows."""
_RUN_HINT: Final = "give --data-dir of a running appliance, or --bootstrap of any broker"


@click.command(short_help="Watch a running appliance: processes, topics, groups.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="The data directory, whose processes are shown if an appliance on this host serves it.",
)
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.2, max=3600),
    default=2.0,
    show_default=True,
    help="Time between two pictures.",
)
@click.option("--once", is_flag=True, help="Show one picture, of one interval, and end.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after this number of pictures.")
@json_option
@client_options
def top(
    *, data_dir: Path, interval: float, once: bool, count: int | None, as_json: bool, bootstrap: str
) -> int:
    """Show processes, rates, topics and the lag of groups, until Ctrl-C or q.

    IDLE is the part of the interval in which a process had no work. Without an appliance on this host, the command
    shows topics and groups as the broker of --bootstrap reports them.
    """
    watched = _Watched(data_dir, bootstrap)
    pictures = 1 if once else count
    if as_json:
        return _repeat(watched, interval, pictures, print_json)
    if once or not sys.stdout.isatty() or not is_installed("rich"):
        return _repeat(watched, interval, pictures, _print)
    return _live(watched, interval, pictures)


class _Watched:
    """What is watched: an appliance on this host, a broker, or both."""

    def __init__(self, data_dir: Path, bootstrap: str) -> None:
        from appliance.cli.status import processes_of

        self.directory: Path | None = None
        context = click.get_current_context()
        broker_source = context.get_parameter_source("bootstrap")
        is_told = broker_source is not ParameterSource.DEFAULT
        with suppress(OSError, OperatorFault):
            if data_dir.is_dir() and any(each["pid"] for each in processes_of(data_dir.resolve()) or ()):
                self.directory = data_dir.resolve()
        if (
            self.directory is None
            and context.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE
            and broker_source is not ParameterSource.COMMANDLINE
        ):
            # The default broker, or that of the environment, may be another appliance.
            raise OperatorFault(f"no appliance runs on {data_dir}; {_RUN_HINT}")
        self.bootstrap = bootstrap
        if self.directory is not None and not is_told:
            self.bootstrap = _address_of(self.directory) or bootstrap
        self._client: AdminClient | None = None
        if self.directory is None:
            try:
                self._client = admin_client(self.bootstrap)
            except BrokerError as fault:
                raise BrokerError(f"{fault}; {_RUN_HINT}") from None

    def sample(self) -> Sample:
        if self._client is None:
            with suppress(BrokerError):
                self._client = admin_client(self.bootstrap)
        return sample(self._client, self.directory)


def _address_of(directory: Path) -> str | None:
    """Return where the appliance of a data directory listens."""
    from appliance.cli.status import run_facts
    from appliance.cli.status_summary import ANY_ADDRESS
    from appliance.config.sections.listeners import host_and_port

    facts = run_facts(directory)
    host, port = facts.get("host"), facts.get("port")
    if not isinstance(host, str) or not isinstance(port, int):
        return None
    return host_and_port(ANY_ADDRESS.get(host, host), port)


def _repeat(watched: _Watched, interval: float, pictures: int | None, show: Any) -> int:
    before = watched.sample()
    shown = 0
    while pictures is None or shown < pictures:
        time.sleep(interval)
        now = watched.sample()
        show(changes(before, now))
        sys.stdout.flush()
        before = now
        shown += 1
    return 0


def _live(watched: _Watched, interval: float, pictures: int | None) -> int:
    """Draw in place until q, Ctrl-C or the number of pictures; after a change of the size at once."""
    from rich.console import Console
    from rich.live import Live

    from appliance.cli.top_picture import picture, waiting

    console = Console(highlight=False)
    with (
        Live(waiting(), console=console, screen=True, auto_refresh=False) as live,
        _keys() as keys,
        _resizes() as resized,
    ):
        live.refresh()
        before = watched.sample()
        shown = 0
        told: dict[str, Any] | None = None
        next_s = time.monotonic() + interval
        while pictures is None or shown < pictures:
            ready, _, _ = select.select([keys, resized], [], [], max(0.0, next_s - time.monotonic()))
            if keys in ready and os.read(keys, 64).lower().startswith((b"q", b"\x03")):
                return 0
            if resized in ready:
                os.read(resized, 64)
                # Nothing of the old size may be left beside the picture.
                console.clear()
            elif time.monotonic() >= next_s:
                now = watched.sample()
                told = changes(before, now)
                before, next_s = now, time.monotonic() + interval
                shown += 1
            live.update(waiting() if told is None else picture(told, console.size), refresh=True)
    return 0


@contextmanager
def _keys() -> Iterator[int]:
    """A descriptor that is readable when a key is pressed; without a terminal, one that never is."""
    if not sys.stdin.isatty():
        reading, writing = os.pipe()
        try:
            yield reading
        finally:
            os.close(reading)
            os.close(writing)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _resizes() -> Iterator[int]:
    """A descriptor that is readable when the terminal has another size."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def note(_number: int, _frame: object) -> None:
        with suppress(BlockingIOError):
            os.write(writing, b"r")

    before = signal.signal(signal.SIGWINCH, note)
    try:
        yield reading
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(reading)
        os.close(writing)


def _print(told: dict[str, Any]) -> None:
    """One picture as text."""
    click.echo(headline(told))
    if told["processes"]:
        click.echo()
        print_table(*process_table(told), right=PROCESS_RIGHT)
    for rows in (topic_table(told), group_table(told)):
        if rows[1]:
            click.echo()
            print_table(rows[0], rows[1][:ROWS_MAX], right=rows[0][1:])
            if len(rows[1]) > ROWS_MAX:
                click.echo(f"… and {len(rows[1]) - ROWS_MAX} more")
    click.echo()
