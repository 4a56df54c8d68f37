"""`appliance groups reset-offsets`: a group goes on from somewhere else. Shows what it would do unless told to do it.

The group must be empty: members would commit over it, and the broker refuses (UNKNOWN_MEMBER_ID).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from appliance.cli.client import admin_client, answer_of, asked, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.group_lag import Partition, committed_offsets, earliest, latest, offsets_at, since
from appliance.cli.options import DURATION, client_options
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.positions import FORMS, Anchor, Place, parse_place

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@click.command(name="reset-offsets", short_help="Set the offsets of a group.")
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,...]",
    multiple=True,
    help="Only these partitions.  [default: all with committed offsets]",
)
@click.option("--to", "place", metavar="PLACE", help=f"{FORMS}.")
@click.option(
    "--by", "step", type=int, metavar="N", help="Move forward by this many records; negative: back."
)
@click.option("--ago", "duration", metavar="DURATION", help="Go back by this time: 90m, 2d12h.")
@click.option("--execute", is_flag=True, help="Make the change; without it the command only shows it.")
@json_option
@client_options
def reset_offsets(
    *,
    name: str,
    topics: tuple[str, ...],
    place: str | None,
    step: int | None,
    duration: str | None,
    execute: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Set the offsets of a group without members. Shows the change; --execute makes it."""
    if sum(each is not None for each in (place, step, duration)) != 1:
        raise click.UsageError("give one of --to, --by and --ago")
    wanted = Place(Anchor.TIMESTAMP, _since_ms(duration)) if duration is not None else None
    if place is not None:
        wanted = parse_place(place, "--to")
    client = admin_client(bootstrap)
    before = committed_offsets(client, name)
    if not before and not topics:
        raise BrokerError(f"group {name} has no committed offsets; name topics with --topic")
    partitions = chosen_partitions(client, topics, before)
    after = _targets(client, partitions, before, place=wanted, step=step or 0)
    rows = [
        {"topic": each[0], "partition": each[1], "before": before.get(each), "after": after[each]}
        for each in sorted(after)
    ]
    if execute and rows:
        _commit(client, name, after)
    if as_json:
        print_json({"group": name, "executed": execute, "partitions": rows})
        return
    if not rows:
        click.echo("nothing to reset", err=True)
        return
    print_table(
        ("TOPIC", "PARTITION", "BEFORE", "AFTER"),
        [(row["topic"], row["partition"], row["before"], row["after"]) for row in rows],
        right=("PARTITION", "BEFORE", "AFTER"),
    )
    if not execute:
        click.echo("nothing was changed; add --execute to change it", err=True)


def chosen_partitions(
    client: AdminClient, topics: Sequence[str], committed: dict[Partition, int]
) -> list[Partition]:
    """Return the partitions that `TOPIC` and `TOPIC:0,1` name; without any, those that have a committed offset.

    Raises:
        BrokerError: there is no such topic or partition.
        click.UsageError: a text is none of the two.
    """
    if not topics:
        return sorted(committed)
    known = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
    found: list[Partition] = []
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if topic not in known:
            raise BrokerError(f"there is no topic {topic}")
        there = sorted(known[topic].partitions)
        asked_for = [_number(text, each) for each in numbers.split(",")] if colon else there
        missing = set(asked_for) - set(there)
        if missing:
            raise BrokerError(f"topic {topic} has no partition {min(missing)}")
        found += [(topic, number) for number in asked_for]
    return list(dict.fromkeys(found))


def _number(text: str, number: str) -> int:
    if not (number.isascii() and number.isdigit()):
        raise click.UsageError(f"--topic {text!r}: must be TOPIC or TOPIC:PARTITION,...")
    return int(number)


def _targets(
    client: AdminClient,
    partitions: Sequence[Partition],
    before: dict[Partition, int],
    *,
    place: Place | None,
    step: int,
) -> dict[Partition, int]:
    """Where each partition goes on, between its first record and its end."""
    starts = offsets_at(client, partitions, earliest())
    ends = offsets_at(client, partitions, latest())
    meant: dict[Partition, int] = {}
    if place is None:
        meant = {each: before[each] + step for each in partitions if each in before}
    elif place.anchor is Anchor.TIMESTAMP:
        found = offsets_at(client, partitions, since(place.distance))
        # Nothing that late: the end.
        meant = {each: at if at >= 0 else ends.get(each, 0) for each, at in found.items()}
    elif place.anchor is Anchor.OFFSET:
        meant = dict.fromkeys(partitions, place.distance)
    elif place.anchor is Anchor.BEGINNING:
        meant = {each: start + place.distance for each, start in starts.items()}
    else:
        meant = {each: end - place.distance for each, end in ends.items()}
    return {
        each: min(max(at, starts[each]), ends[each])
        for each, at in meant.items()
        if each in starts and each in ends
    }


def _commit(client: AdminClient, name: str, after: dict[Partition, int]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    offsets = [TopicPartition(topic, number, at) for (topic, number), at in after.items()]
    wanted = [ConsumerGroupTopicPartitions(name, offsets)]
    (pending,) = asked(
        lambda: client.alter_consumer_group_offsets(wanted, request_timeout=REQUEST_TIMEOUT_S)
    ).values()
    for each in answer_of(pending).topic_partitions:
        if each.error is not None:
            raise BrokerError(f"{each.topic}-{each.partition}: {refusal(each.error)}")


def _since_ms(text: str) -> int:
    """Milliseconds since the epoch of so long ago.

    Raises:
        click.UsageError: it is no duration.
    """
    match = DURATION.fullmatch(text)
    if match is None or not text:
        raise click.UsageError(f"--ago {text!r}: must be a duration such as 90m or 2d12h")
    days, hours, minutes, seconds = (int(each or 0) for each in match.groups())
    try:
        span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise click.UsageError(f"--ago {text!r}: reaches back before the epoch") from None
    return max(0, int((time.time() - span.total_seconds()) * 1000))
