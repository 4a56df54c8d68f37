"""`appliance slots`: list, describe, stop, start, restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.cluster_view import (
    ClusterView,
    PartitionView,
    SlotView,
    cluster_view,
    first_that_answers,
    shown_slots,
)
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.request import request
from appliance.cli.slot_stops import refuse_alone, slot_of, start_slot, stop_slot
from appliance.config.dynamic import SLOT_STOPPED
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource, ResourceType

DESCRIBE_VERSION: Final = 4


@click.group(cls=AliasedGroup, short_help="Show, stop, start and restart broker slots.")
def slots() -> None:
    """Show, stop, start and restart broker slots, which clients see as brokers."""


@slots.command(name="list")
@json_option
@client_options
def list_slots(*, as_json: bool, bootstrap: str) -> None:
    """List the slots, and the number of partitions that each leads, follows and lags in."""
    address = first_that_answers(bootstrap)
    view = cluster_view(address)
    rows = [_counted(view, slot, _state(address, slot)) for slot in view.slots]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("SLOT", "ADDRESS", "STATE", "LEADS", "FOLLOWS", "BEHIND"),
        [
            tuple(row[key] for key in ("slot", "address", "state", "leads", "follows", "behind"))
            for row in rows
        ],
        right=("SLOT", "LEADS", "FOLLOWS", "BEHIND"),
    )


@slots.command()
@click.argument("slot", type=click.IntRange(min=0))
@json_option
@client_options
def describe(*, slot: int, as_json: bool, bootstrap: str) -> None:
    """Show the partitions that a slot leads, follows and lags in."""
    address = first_that_answers(bootstrap)
    view = cluster_view(address)
    found = slot_of(view, slot)
    state = _state(address, found)
    held = [each for each in view.partitions if slot in each.replicas]
    if as_json:
        told = _counted(view, found, state) | {"rack": found.rack}
        print_json(told | {"partitions": [each.as_json() | {"role": _role(each, slot)} for each in held]})
        return
    click.echo(f"slot {slot}: {found.address}, {state}")
    if held:
        print_table(
            ("TOPIC", "PARTITION", "ROLE", "LEADER", "ISR"),
            [
                (each.topic, each.partition, _role(each, slot), each.leader, shown_slots(each.isr))
                for each in held
            ],
            right=("PARTITION", "LEADER"),
        )


@slots.command()
@click.argument("slot", type=click.IntRange(min=0))
@click.option("--force", is_flag=True, help="Stop it even if partitions then have no leader.")
@json_option
@client_options
def stop(*, slot: int, force: bool, as_json: bool, bootstrap: str) -> int:
    """Stop a slot. Other slots then lead its partitions.

    The slot serves no client until you start it, even if the appliance is restarted. Its processes keep running
    without work, and you can unmount its log directories. If a partition is in sync on no other slot, the command
    refuses, because the partition would have no leader. --force stops the slot anyway.
    """
    address = first_that_answers(bootstrap)
    view = cluster_view(address)
    slot_of(view, slot)
    if not force:
        refuse_alone(view, slot)
    stop_slot(address, slot)
    outcomes = Outcomes(as_json=as_json)
    outcomes.done({"slot": slot}, "stopped", f"stopped slot {slot}")
    return outcomes.finish()


@slots.command()
@click.argument("slot", type=click.IntRange(min=0))
@json_option
@client_options
def start(*, slot: int, as_json: bool, bootstrap: str) -> int:
    """Start a stopped slot. The slot catches up, and leads again after the next balancing of leaders."""
    address = first_that_answers(bootstrap)
    start_slot(address, slot)
    outcomes = Outcomes(as_json=as_json)
    outcomes.done({"slot": slot}, "started", f"started slot {slot}")
    return outcomes.finish()


@slots.command()
@click.argument("numbers", metavar="[SLOT]...", nargs=-1, type=click.IntRange(min=0))
@click.option("--rolling", is_flag=True, help="All slots, one after another.")
@click.option(
    "--force", is_flag=True, help="Restart even if partitions then have no leader for some seconds."
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The data directory on this host: restart the slot's processes, too.",
)
@click.option(
    "--wait-s",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a slot's replicas to be in sync.",
)
@json_option
@client_options
def restart(
    *,
    numbers: tuple[int, ...],
    rolling: bool,
    force: bool,
    data_dir: Path | None,
    wait_s: int,
    as_json: bool,
    bootstrap: str,
) -> int:
    """Restart slots, one after another, while clients continue.

    Before a slot is stopped, every partition must be in sync on all its slots. Other slots lead its partitions while
    it is stopped. The command continues with the next slot when all replicas of this one are in sync again. At the end
    each partition's preferred leader leads again. If a step takes too long, the command ends with 1, and the slot that
    it names may still be stopped: `appliance slots start`.
    """
    from appliance.cli.slot_restart import restart_slots

    if rolling == bool(numbers):
        raise click.UsageError("give the numbers of slots, or --rolling for all of them")
    address = first_that_answers(bootstrap)
    outcomes = Outcomes(as_json=as_json)
    restart_slots(address, numbers, force=force, data_dir=data_dir, wait_s=wait_s, outcomes=outcomes)
    return outcomes.finish()


def _role(partition: PartitionView, slot: int) -> str:
    if partition.leader == slot:
        return "leader"
    return "follower" if slot in partition.isr else "behind"


def _counted(view: ClusterView, slot: SlotView, state: str) -> dict[str, Any]:
    """One object a slot; the keys are stable."""
    roles = [_role(each, slot.slot) for each in view.partitions if slot.slot in each.replicas]
    return {
        "slot": slot.slot,
        "address": slot.address,
        "state": state,
        "leads": roles.count("leader"),
        "follows": roles.count("follower"),
        "behind": roles.count("behind"),
    }


def _state(address: str, slot: SlotView) -> str:
    """`live`, `stopped` by its operator, or `down`."""
    if not slot.fenced:
        return "live"
    asked = DescribedResource(ResourceType.BROKER, str(slot.slot), (SLOT_STOPPED,))
    answer = request(address, ApiKey.DESCRIBE_CONFIGS, DESCRIBE_VERSION, DescribeConfigsRequest((asked,)))
    values = [entry.value for result in answer.results for entry in result.configs]
    return "stopped" if values == ["true"] else "down"
