"""`appliance trace`: the way of one record, from its producer to the groups that have consumed it, by `__trace`."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from appliance.cli.moments import moment
from appliance.cli.options import client_options
from appliance.cli.output import json_option, plain, print_json, print_table
from appliance.cli.topic_client import ClientReader


@click.command(short_help="Show the way of one record: produced, stored, fetched, consumed.")
@click.argument("record")
@click.option(
    "--from",
    "from_ms",
    metavar="TIME",
    callback=moment,
    help="Only steps from this time on: 2026-03-01T12:00:00Z, 2026-03-01 (UTC), or 30m (minutes ago).",
)
@json_option
@client_options
def trace(*, record: str, from_ms: int | None, as_json: bool, bootstrap: str) -> None:
    """Show what has happened to a record, by its trace id or as TOPIC-PARTITION-OFFSET.

    The topic needs the setting trace.enable. Steps are about two seconds old. The command reads the topic __trace.
    """
    from appliance.views.topic_access import NotShown
    from appliance.views.traces import traces_of, wanted_of

    try:
        wanted = wanted_of(record)
    except ValueError as fault:
        raise click.UsageError(str(fault)) from None
    with closing(ClientReader(bootstrap)) as reader:
        try:
            traces = traces_of(reader, wanted, from_ms=from_ms)
        except NotShown as fault:
            raise NotShown(f"{record}: {fault}") from None
    if as_json:
        print_json(
            [
                {"trace": some[0].trace, "steps": [msgspec.to_builtins(each) for each in some]}
                for some in traces
            ]
        )
        return
    for some in traces:
        _print(some)


def _print(events: list[Any]) -> None:
    from appliance.views.traces import who

    click.echo(f"trace {plain(events[0].trace)}")
    began_ms = next((each.at_ms for each in events if each.at_ms >= 0), -1)
    rows = [
        (
            _time(each.at_ms),
            f"+{each.at_ms - began_ms}" if each.at_ms >= 0 else None,
            each.step,
            f"{each.topic}-{each.partition}-{each.offset}",
            who(each),
        )
        for each in events
    ]
    print_table(("TIME", "MS", "STEP", "RECORD", "WHO"), rows, right=("MS",))
    if not any(each.step == "consumed" for each in events):
        click.echo("Not consumed by any group yet.")


def _time(at_ms: int) -> str | None:
    if at_ms < 0:
        return None
    try:
        found = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return found.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
