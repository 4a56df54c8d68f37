"""Restarting slots one after another (`appliance slots restart`).

For each slot: all its partitions are in sync everywhere → stop it → its processes are new ones, if a data directory is
given → start it → all its replicas are in sync again. At the end preferred leaders lead again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.cli.cluster_view import ClusterView, PartitionView, cluster_view, refusal_of
from appliance.cli.connecting import BrokerError
from appliance.cli.outcomes import Outcomes
from appliance.cli.request import request
from appliance.cli.slot_stops import await_view, refuse_alone, start_slot, stop_slot
from appliance.errors import OperatorFault
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.elect_leaders import PREFERRED, ElectLeadersRequest
from appliance.protocol.errors import ErrorCode

_ELECT_VERSION: Final = 2
_ELECT_TIMEOUT_MS: Final = 30_000
_OF_A_SLOT: Final = ("ioproc", "replica")
_PROCESS_WAIT_S: Final = 30.0
_PAUSE_S: Final = 0.05


def restart_slots(
    address: str,
    numbers: Sequence[int],
    *,
    force: bool,
    data_dir: Path | None,
    wait_s: float,
    outcomes: Outcomes,
) -> None:
    """Restart slots in the given order; all of them if `numbers` is empty.

    Raises:
        BrokerError: a slot is not there, is stopped or down, or would leave partitions without a leader; or a step
            takes too long. Slots before it are restarted.
        OperatorFault: no appliance runs on `data_dir`, or its processes belong to another user. No slot was stopped.
    """
    view = cluster_view(address)
    known = {slot.slot: slot for slot in view.slots}
    wanted = tuple(numbers) or tuple(known)
    for number in wanted:
        if number not in known:
            raise BrokerError(f"there is no slot {number}; see `appliance slots list`")
        if known[number].fenced:
            raise BrokerError(f"slot {number} is stopped or down; start it first")
        if not force:
            refuse_alone(view, number)
        if data_dir is not None:
            _refuse_others_processes(_slot_processes(data_dir.resolve(), number), number)
    for number in wanted:
        begin = time.monotonic()
        reached = next((slot.address for slot in view.slots if slot.slot != number), address)
        await_view(
            reached,
            lambda now, number=number: not _lagging(now, number),  # type: ignore[misc]
            f"the replicas of slot {number}'s partitions to be in sync",
            wait_s=wait_s,
        )
        stop_slot(reached, number)
        if data_dir is not None:
            _restart_processes(data_dir.resolve(), number)
        start_slot(reached, number)
        await_view(
            reached,
            lambda now, number=number: not _lagging(now, number),  # type: ignore[misc]
            f"the replicas of slot {number} to be in sync",
            wait_s=wait_s,
        )
        outcomes.done(
            {"slot": number},
            "restarted",
            f"slot {number}: restarted in {time.monotonic() - begin:.1f} s",
            elapsed_s=round(time.monotonic() - begin, 3),
        )
    _elect_preferred(address)


def _lagging(view: ClusterView, slot: int) -> list[PartitionView]:
    """Partitions of a slot that are not in sync on all their slots, or have no leader."""
    return [
        each
        for each in view.partitions
        if slot in each.replicas and (each.leader is None or each.is_under_replicated)
    ]


def _elect_preferred(address: str) -> None:
    body = ElectLeadersRequest(None, _ELECT_TIMEOUT_MS, PREFERRED)
    answer = request(address, ApiKey.ELECT_LEADERS, _ELECT_VERSION, body)
    if answer.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
        raise BrokerError(f"preferred leaders were not elected: {refusal_of(answer.error_code, None)}")


def _slot_processes(data_dir: Path, slot: int) -> dict[str, tuple[int, int]]:
    """(process id, generation) by role of the processes that belong to a slot alone."""
    from appliance.cli.status import processes_of

    found = {
        each["role"]: (each["pid"], each["generation"])
        for each in processes_of(data_dir) or ()
        if each["role"].partition(" ")[0] in _OF_A_SLOT
        and each["role"].partition(" ")[2].partition(".")[0] == str(slot)
        and each["pid"] is not None
        and each["state"] == "running"
    }
    if not found:
        raise OperatorFault(f"no appliance runs on {data_dir}")
    return found


def _refuse_others_processes(processes: Mapping[str, tuple[int, int]], slot: int) -> None:
    """Raises OperatorFault if this user may not signal one of the processes of a slot. Signal 0 only asks."""
    for pid, _ in processes.values():
        with suppress(ProcessLookupError):
            try:
                os.kill(pid, 0)
            except PermissionError as error:
                raise OperatorFault(
                    f"process {pid} of slot {slot} belongs to another user: run this command as the appliance's user;"
                    " no slot was stopped"
                ) from error


def _restart_processes(data_dir: Path, slot: int) -> None:
    """End the processes of a stopped slot, which have no work, and return when the supervisor has started new ones."""
    before = _slot_processes(data_dir, slot)
    for pid, _ in before.values():
        with suppress(ProcessLookupError):
            try:
                os.kill(pid, signal.SIGKILL)
            except PermissionError as error:
                raise OperatorFault(
                    f"process {pid} of slot {slot} belongs to another user; the slot is stopped: `appliance slots start"
                    f" {slot}`"
                ) from error
    deadline = time.monotonic() + _PROCESS_WAIT_S
    while True:
        with suppress(OperatorFault):
            now = _slot_processes(data_dir, slot)
            if all(role in now and now[role][1] > generation for role, (_, generation) in before.items()):
                return
        if time.monotonic() > deadline:
            raise BrokerError(
                f"the processes of slot {slot} have not come back within {_PROCESS_WAIT_S:.0f} s"
            )
        time.sleep(_PAUSE_S)
