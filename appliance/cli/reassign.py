"""`appliance reassign`: move, status, cancel, unthrottle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.cluster_view import (
    PartitionView,
    cluster_view,
    first_that_answers,
    named_partitions,
    refusal_of,
    require_slots,
    shown_slots,
    slot_numbers,
)
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.replication_throttle import throttle, unthrottle
from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

ALTER_VERSION: Final = 1
NAMES: Final = "TOPIC[:PARTITION,...]..."


@click.group(cls=AliasedGroup, short_help="Move partitions to other slots, or change the number of replicas.")
def reassign() -> None:
    """Move partitions to other slots, or change the number of replicas, while they are in use."""


@reassign.command()
@click.argument("wanted", metavar=NAMES, nargs=-1, required=True)
@click.option(
    "--to",
    "target",
    metavar="SLOT,...",
    required=True,
    help="The slots that get a replica of each partition.",
)
@click.option(
    "--throttle",
    "rate",
    metavar="BYTES",
    type=click.IntRange(min=1),
    help="Maximum bytes per second copied to each slot and from each slot; `reassign unthrottle` removes this limit.",
)
@json_option
@client_options
def move(*, wanted: tuple[str, ...], target: str, rate: int | None, as_json: bool, bootstrap: str) -> int:
    """Move partitions to the slots of --to.

    The first slot of --to leads the first partition, the next slot leads the next partition, and so on in rotation. The
    command ends when the moves have started; `reassign status` shows their progress.
    """
    slots = slot_numbers("--to", target)
    address = first_that_answers(bootstrap)
    view = cluster_view(address)
    require_slots(view, slots)
    places = {
        each: slots[shift % len(slots) :] + slots[: shift % len(slots)]
        for shift, each in enumerate(named_partitions(view, wanted))
    }
    if rate is not None:
        throttle(address, places, rate)
    return _alter(address, places, as_json=as_json)


@reassign.command(name="unthrottle")
@json_option
@client_options
def end_throttle(*, as_json: bool, bootstrap: str) -> None:
    """Remove the limits of --throttle from all slots and all topics."""
    address = first_that_answers(bootstrap)
    unthrottle(address, cluster_view(address))
    if as_json:
        print_json({"result": "unthrottled"})


@reassign.command()
@json_option
@client_options
def status(*, as_json: bool, bootstrap: str) -> None:
    """Show moves in progress, and the slots that they wait for."""
    view = cluster_view(first_that_answers(bootstrap))
    moving = [each for each in view.partitions if each.adding or each.removing]
    if as_json:
        print_json([each.as_json() for each in moving])
    elif moving:
        print_table(
            ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "WAITS FOR"),
            [
                (
                    each.topic,
                    each.partition,
                    shown_slots(each.replicas),
                    shown_slots(each.adding),
                    shown_slots(each.removing),
                    shown_slots(slot for slot in each.adding if slot not in each.isr),
                )
                for each in moving
            ],
            right=("PARTITION",),
        )
    else:
        click.echo("nothing is being reassigned", err=True)


@reassign.command()
@click.argument("wanted", metavar=f"[{NAMES}]", nargs=-1)
@click.option("--all", "all_partitions", is_flag=True, help="All moves in progress.")
@json_option
@client_options
def cancel(*, wanted: tuple[str, ...], all_partitions: bool, as_json: bool, bootstrap: str) -> int:
    """Cancel moves: partitions return to their old slots."""
    if bool(wanted) == all_partitions:
        raise click.UsageError("name partitions, or give --all")
    address = first_that_answers(bootstrap)
    view = cluster_view(address)
    named = named_partitions(view, wanted) if wanted else view.partitions
    moving = [each for each in named if each.adding or each.removing] if all_partitions else named
    return _alter(address, dict.fromkeys(moving), as_json=as_json)


def _alter(address: str, places: Mapping[PartitionView, tuple[int, ...] | None], *, as_json: bool) -> int:
    outcomes = Outcomes(as_json=as_json)
    if not places:
        return outcomes.finish()
    topics: dict[str, list[ReassignablePartition]] = {}
    for partition, slots in places.items():
        topics.setdefault(partition.topic, []).append(ReassignablePartition(partition.partition, slots))
    body = AlterPartitionReassignmentsRequest(
        tuple(ReassignableTopic(topic, tuple(each)) for topic, each in topics.items())
    )
    answer = request(address, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ALTER_VERSION, body, oldest=0)
    if answer.error_code:
        raise BrokerError(f"reassignment: {refusal_of(answer.error_code, answer.error_message)}")
    said = {(each.topic, each.partition): slots for each, slots in places.items()}
    for topic in answer.responses:
        for each in topic.partitions:
            name = f"{topic.name}-{each.partition_index}"
            identity = {"topic": topic.name, "partition": each.partition_index}
            slots = said.get((topic.name, each.partition_index))
            if each.error_code:
                outcomes.refused(identity, name, refusal_of(each.error_code, each.error_message))
            elif slots is None:
                outcomes.done(identity, "cancelled", f"{name} returns to its old slots")
            else:
                outcomes.done(identity, "moving", f"moving {name} to {shown_slots(slots)}", to=list(slots))
    return outcomes.finish()
