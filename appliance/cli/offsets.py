"""`appliance offsets`: the offsets of partitions, now or again and again."""

from __future__ import annotations

import click

from appliance.cli.client import admin_client, asked
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.group_lag import earliest, latest, offsets_at, since
from appliance.cli.moments import moment
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.watch import watch_option, watched
from appliance.views.moments import FORMS


@click.command(short_help="Show first, last stable and end offsets of partitions.")
@click.argument("names", metavar="[TOPIC...]", nargs=-1)
@click.option(
    "--at",
    "at_ms",
    metavar="TIME",
    callback=moment,
    help=f"Also show the first offset at or after a time: {FORMS}.",
)
@json_option
@watch_option
@client_options
def offsets(
    *, names: tuple[str, ...], at_ms: int | None, as_json: bool, watch_s: float | None, bootstrap: str
) -> None:
    """Show the first offset, the last stable offset and the high watermark of partitions.  [default: all topics]

    With --at, AT is the first offset whose record is not older than a time; none where all records are older.
    """
    client = admin_client(bootstrap)

    def show() -> None:
        known = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
        for name in names:
            if name not in known:
                raise BrokerError(f"there is no topic {name}")
        wanted = [
            (name, number)
            for name in (names or sorted(name for name in known if not name.startswith("__")))
            for number in sorted(known[name].partitions)
        ]
        starts = offsets_at(client, wanted, earliest())
        stable = offsets_at(client, wanted, latest(), read_committed=True)
        ends = offsets_at(client, wanted, latest())
        at = None if at_ms is None else offsets_at(client, wanted, since(at_ms))
        rows = [
            {
                "topic": each[0],
                "partition": each[1],
                "start": starts.get(each),
                "stable": stable.get(each),
                "end": ends.get(each),
                **({} if at is None else {"at": found if (found := at.get(each, -1)) >= 0 else None}),
            }
            for each in wanted
        ]
        if as_json:
            print_json(rows)
            return
        numbers = ("PARTITION", "START", "STABLE", "END", *(() if at is None else ("AT",)))
        print_table(("TOPIC", *numbers), [tuple(row.values()) for row in rows], right=numbers)

    watched(show, watch_s)
