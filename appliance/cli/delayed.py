"""`appliance delayed`: list, show, cancel: records that are delivered later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import asked, producer, refusal
from appliance.cli.connecting import BrokerError
from appliance.cli.delayed_index import index_option, local_index
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.topic_client import ClientReader
from appliance.views.delayed import DelayedView, WaitingView, cancelling, delivery_id
from appliance.views.delayed_lookup import DelayedLookup

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

LIMIT: Final = 100
FLUSH_TIMEOUT_S: Final = 65.0
UNINDEXED_MIN: Final = 20_000
"""With so many records that no index file has, the command says why it took long."""


@click.group(cls=AliasedGroup, short_help="List, show and cancel delayed records.")
def delayed() -> None:
    """List, show and cancel records that are delivered later (docs/delayed-delivery.md).

    `list` and `show` need the right to read the internal topics whose names begin with __delayed_, `cancel` the right
    to write to the topic.
    """


def _delivery_id(_context: click.Context, parameter: click.Parameter, text: str) -> bytes:
    try:
        return delivery_id(text)
    except ValueError as fault:
        raise click.BadParameter(str(fault), param=parameter) from None


@contextmanager
def _view(bootstrap: str) -> Iterator[DelayedView]:
    with closing(ClientReader(bootstrap)) as reader:
        yield DelayedView(reader)


@contextmanager
def _lookup(bootstrap: str, data_dir: Path | None) -> Iterator[DelayedLookup]:
    index = local_index(bootstrap, data_dir)
    with closing(ClientReader(bootstrap)) as reader:
        lookup = DelayedLookup(DelayedView(reader), reader, index)
        yield lookup
    if lookup.unindexed >= UNINDEXED_MIN:
        click.echo(
            f"appliance: {lookup.unindexed} records with exact delays were read from the topics: {index.why}",
            err=True,
        )


@delayed.command(name="list")
@click.argument("topic", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=100_000),
    default=LIMIT,
    show_default=True,
    help="Show at most this number of records: those that are due first.",
)
@index_option
@json_option
@client_options
def list_delayed(
    *, topic: str | None, limit: int, data_dir: Path | None, as_json: bool, bootstrap: str
) -> None:
    """List the delayed records that wait for TOPIC, or for all topics, by the time at which they are due.

    On the machine of the broker, the command finds records with exact delays in the broker's index of due times.
    Elsewhere, and for other delays, it reads everything that waits. This takes some time if there are millions of
    records.
    """
    with _lookup(bootstrap, data_dir) as lookup:
        listing = lookup.soonest(topic, limit)
        if lookup.has_read_all:
            click.echo(
                "appliance: everything was read, because many records wait for longer than the largest level",
                err=True,
            )
    found = listing.records
    if as_json:
        shown = [each.as_json() for each in found]
        print_json({"waiting": listing.count, "waiting_is_exact": listing.is_exact, "records": shown})
        return
    _print(found)
    if listing.count > len(found):
        at_most = "" if listing.is_exact else "at most "
        click.echo(f"{at_most}{listing.count - len(found)} more records wait", err=True)


@delayed.command()
@click.argument("topic")
@click.argument("name", metavar="ID", callback=_delivery_id)
@index_option
@json_option
@client_options
def show(*, topic: str, name: bytes, data_dir: Path | None, as_json: bool, bootstrap: str) -> int:
    """Show the delayed records of TOPIC whose header delivery.id is ID. The exit code is 1 if there is none.

    On the machine of the broker, the command finds records with exact delays in the broker's index of due times.
    Elsewhere, and for other delays, it reads what waits in the partitions that the topic uses.
    """
    with _lookup(bootstrap, data_dir) as lookup:
        found = lookup.with_id(topic, name)
    if as_json:
        print_json([each.as_json() for each in found])
    elif found:
        _print(found)
    else:
        click.echo(f"appliance: no delayed record of {topic} with this id waits", err=True)
    return 0 if found else 1


@delayed.command()
@click.argument("topic")
@click.argument("name", metavar="ID", callback=_delivery_id)
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only records of this partition; repeatable.  [default: all]",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
@client_options
def cancel(
    *, topic: str, name: bytes, partitions: tuple[int, ...], yes: bool, as_json: bool, bootstrap: str
) -> int:
    """Cancel the delayed records of TOPIC whose header delivery.id is ID. They are not delivered.

    This holds for records that were produced before this command, and are not delivered yet. The command asks for
    confirmation; without a terminal it requires --yes.
    """
    with _view(bootstrap) as view:
        count = view.partitions(topic)
        view.require_delays(topic)
    for each in partitions:
        if each >= count:
            raise BrokerError(f"{topic} has no partition {each}")
    shown = name.decode(errors="replace")
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("delayed cancel asks for confirmation; without a terminal give --yes")
        click.confirm(f"Cancel the delayed records of {topic} with the id {shown}?", abort=True, err=True)
    outcomes = Outcomes(as_json=as_json)
    for partition, error in _cancel(topic, name, partitions or tuple(range(count)), bootstrap):
        identity: dict[str, Any] = {"topic": topic, "partition": partition, "id": shown}
        if error is None:
            outcomes.done(identity, "cancelled", f"{topic}-{partition}: {shown} is cancelled")
        else:
            outcomes.refused(identity, f"{topic}-{partition}", error)
    return outcomes.finish()


def _cancel(
    topic: str, name: bytes, partitions: tuple[int, ...], bootstrap: str
) -> list[tuple[int, str | None]]:
    """Produce the record that cancels to each partition; return (partition, why it was refused)."""
    told: dict[int, str | None] = dict.fromkeys(partitions, "no answer")

    def note(error: KafkaError | None, message: Message) -> None:
        told[message.partition() or 0] = None if error is None else refusal(error)

    client = producer(bootstrap, {"enable.idempotence": True})
    headers: list[tuple[str, str | bytes | None]] = [*cancelling(name)]
    for partition in told:
        client.produce(topic, None, partition=partition, headers=headers, on_delivery=note)
    asked(lambda: client.flush(FLUSH_TIMEOUT_S))
    return sorted(told.items())


def _print(found: list[WaitingView]) -> None:
    rows = []
    for each in found:
        row = each.as_json()
        due = datetime.fromtimestamp(row["due_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
        values = (row["partition"], row["offset"], due, row["id"] or "-", row["level"], row["value_bytes"])
        rows.append((row["topic"], *values))
    print_table(
        ("TOPIC", "PARTITION", "OFFSET", "DUE", "ID", "LEVEL", "BYTES"),
        rows,
        right=("PARTITION", "OFFSET", "BYTES"),
    )
