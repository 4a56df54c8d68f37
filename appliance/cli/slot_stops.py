"""Stopping and starting a slot, and waiting for what follows (`appliance slots`, `appliance.testing`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from appliance.cli.cluster_view import ClusterView, SlotView, cluster_view, refusal_of, shown_slots
from appliance.cli.connecting import BrokerError
from appliance.cli.request import request
from appliance.config.dynamic import SLOT_STOPPED
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import ResourceType
from appliance.protocol.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    ConfigOperation,
    IncrementalAlterConfigsRequest,
)

ALTER_VERSION: Final = 1
WAIT_S: Final = 30.0
PAUSE_S: Final = 0.05
SHOWN_MAX: Final = 10


def stop_slot(address: str, slot: int) -> None:
    """Stop a slot, also if partitions then have no leader, and return when it leads nothing.

    Raises:
        BrokerError: nobody answers at `address`, there is no such slot, or it does not hand over in time.
    """
    slot_of(cluster_view(address), slot)
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
    slot_of(cluster_view(address), slot)
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


def slot_of(view: ClusterView, number: int) -> SlotView:
    """Raises BrokerError where there is no such slot."""
    for slot in view.slots:
        if slot.slot == number:
            return slot
    raise BrokerError(
        f"there is no slot {number}; there {'is' if len(view.slots) == 1 else 'are'}"
        f" {shown_slots(slot.slot for slot in view.slots)}"
    )


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
