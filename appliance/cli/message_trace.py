"""`appliance trace`: the way of one record, from its producer to the groups that have consumed it, by `__trace`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from appliance.cli.connecting import BrokerError
from appliance.cli.message_audit import internal_values
from appliance.cli.moments import moment
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table

TOPIC: Final = "__trace"
REPORTS: Final = "trace-reports"
"""Where the native client reports what it has processed. Any producer may write there: only these steps count."""
EVENTS_MAX: Final = 10_000
_TRACE: Final = re.compile(r"[0-9a-f]{32}")
_PLACE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})-(\d{1,19})")


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
    from appliance.message_trace.event import Event, Step, decode, in_order

    wanted = record.lower()
    place = None if _TRACE.fullmatch(wanted) else _PLACE.fullmatch(record)
    if place is None and not _TRACE.fullmatch(wanted):
        raise click.UsageError(
            f"{record!r} is neither a trace id of 32 hex digits nor TOPIC-PARTITION-OFFSET, such as orders-0-42"
        )
    asked = None if place is None else (place[1], int(place[2]), int(place[3]))
    by_trace: dict[str, list[Event]] = {}
    found_ids: set[str] = set() if asked is not None else {wanted}
    values = internal_values(bootstrap, TOPIC, None, setting="trace.enable", from_ms=from_ms)
    events = [event for value in values if (event := decode(value)) is not None]
    reported = internal_values(bootstrap, REPORTS, None, setting="", from_ms=from_ms)
    events += [
        event for value in reported if (event := decode(value)) is not None and event.step == Step.PROCESSED
    ]
    if asked is not None:
        found_ids = {event.trace for event in events if (event.topic, event.partition, event.offset) == asked}
    for event in events:
        if event.trace in found_ids:
            by_trace.setdefault(event.trace, []).append(event)
    if not by_trace:
        raise BrokerError(f"{record}: no trace of it was found; docs/trace.md says which records are traced")
    traces = [in_order(some[:EVENTS_MAX]) for _, some in sorted(by_trace.items())]
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
    click.echo(f"trace {events[0].trace}")
    began_ms = next((each.at_ms for each in events if each.at_ms >= 0), -1)
    rows = [
        (
            _time(each.at_ms),
            f"+{each.at_ms - began_ms}" if each.at_ms >= 0 else None,
            each.step,
            f"{each.topic}-{each.partition}-{each.offset}",
            _who(each),
        )
        for each in events
    ]
    print_table(("TIME", "MS", "STEP", "RECORD", "WHO"), rows, right=("MS",))
    if not any(each.step == "consumed" for each in events):
        click.echo("Not consumed by any group yet.")


def _who(event: Any) -> str:
    parts = []
    if event.group:
        parts.append(f"group {event.group}")
    if event.client or event.principal:
        parts.append(f"client {event.client} ({event.principal})")
    if event.detail:
        parts.append(event.detail)
    return ", ".join(parts)


def _time(at_ms: int) -> str | None:
    if at_ms < 0:
        return None
    try:
        found = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return found.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
