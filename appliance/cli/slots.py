"""`appliance slots`: list, describe, stop, start, restart."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    refusal_of,
    shown_slots,
)
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.request import request
from appliance.config.dynamic import SLOT_STOPPED
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource, ResourceType
from appliance.protocol.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    ConfigOperation,
    IncrementalAlterConfigsRequest,
)

DESCRIBE_VERSION: Final = 4
ALTER_VERSION: Final = 1
WAIT_S: Final = 30.0
PAUSE_S: Final = 0.05
SHOWN_MAX: Final = 10


@click.group(cls=AliasedGroup, short_help="Show, stop and start broker slots.")
def slots() -> None:
    """Show, stop and start broker slots, which clients see as brokers."""


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
    found = _slot(view, slot)
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
    _slot(view, slot)
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


def stop_slot(address: str, slot: int) -> None:
    """Stop a slot, also if partitions then have no leader, and return when it leads nothing.

    Raises:
        BrokerError: nobody answers at `address`, there is no such slot, or it does not hand over in time.
    """
    _slot(cluster_view(address), slot)
    _set_stopped(address, slot, "true")
    await_view(
        address,
        lambda now: (
            all(each.slot != slot or each.fenced for each in now.slots)
            and all(each.leader != slot for each in now.partitions)
        ),
        f"slot {slot} to hand over its partitions",
    )


def start_slot(address: str, slot: int) -> None:
    """Start a stopped slot and return when clients can use it.

    Raises:
        BrokerError: nobody answers at `address`, there is no such slot, or it does not come back in time.
    """
    _slot(cluster_view(address), slot)
    _set_stopped(address, slot, None)
    await_view(
        address,
        lambda now: any(each.slot == slot and not each.fenced for each in now.slots),
        f"slot {slot} to come back",
    )


def refuse_alone(view: ClusterView, slot: int) -> None:
    """Raises BrokerError where partitions would have no leader if the slot stopped."""
    alone = [each for each in view.partitions if each.leader == slot and set(each.isr) <= {slot}]
    if alone:
        named = ", ".join(map(str, alone[:SHOWN_MAX])) + (" …" if len(alone) > SHOWN_MAX else "")
        raise BrokerError(
            f"{len(alone)} partitions are in sync on slot {slot} alone and would have no leader ({named}); "
            "add replicas, or give --force"
        )


def _slot(view: ClusterView, number: int) -> SlotView:
    for slot in view.slots:
        if slot.slot == number:
            return slot
    raise BrokerError(
        f"there is no slot {number}; there {'is' if len(view.slots) == 1 else 'are'}"
        f" {shown_slots(slot.slot for slot in view.slots)}"
    )


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


def _set_stopped(address: str, slot: int, value: str | None) -> None:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    change = AlterableConfig(SLOT_STOPPED, int(operation), value)
    resource = AlterConfigsResource(int(ResourceType.BROKER), str(slot), (change,))
    body = IncrementalAlterConfigsRequest((resource,))
    (result,) = request(address, ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, body).responses
    if result.error_code:
        raise BrokerError(refusal_of(result.error_code, result.error_message))


def await_view(
    address: str, done: Callable[[ClusterView], bool], what: str, *, wait_s: float = WAIT_S
) -> None:
    """Return when the cluster is as `done` says.

    Raises:
        BrokerError: it is not after `wait_s` seconds; the text names `what`.
    """
    deadline = time.monotonic() + wait_s
    while not done(cluster_view(address)):
        if time.monotonic() > deadline:
            raise BrokerError(f"waited {wait_s:.0f} s for {what}, which is still in progress")
        time.sleep(PAUSE_S)
