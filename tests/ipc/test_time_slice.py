"""The slice that our processes ask for: whose it is, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from appliance.ipc.time_slice import SLICE_NS
from tests.support.time_slice import IS_HEARD, Scheduled

# In a process of its own, since what is asked for stays.
_PROGRAM = """
import json, os, threading
from appliance.ipc.time_slice import ask_for_short_slice
from tests.support.time_slice import scheduled

{before}
found = {{"before": scheduled()}}
taken = ask_for_short_slice()
found["after"] = scheduled()
thread = threading.Thread(target=lambda: found.update(thread=scheduled()))
thread.start()
thread.join()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, json.dumps(scheduled()).encode())
    os._exit(0)
found["child"] = json.loads(os.read(read, 4096))
print(json.dumps([taken, found]))
"""


def asked_after(before: str) -> tuple[bool, dict[str, Scheduled]]:
    """Whether the slice was taken, and what held before, after, in a thread and in a child."""
    program = _PROGRAM.format(before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    taken, found = json.loads(done.stdout)
    return taken, {who: Scheduled(*fields) for who, fields in found.items()}


@pytest.mark.parametrize(
    ("before", "policy", "nice"),
    [("", 0, 0), ("os.nice(5)", 0, 5), ("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))", 3, 0)],
)
def test_only_the_slice_changes_and_what_is_started_later_inherits_it(
    before: str, policy: int, nice: int
) -> None:
    taken, found = asked_after(before)
    assert taken
    nice += os.getpriority(os.PRIO_PROCESS, 0)
    assert {(each.policy, each.nice) for each in found.values()} == {(policy, nice)}
    if IS_HEARD:
        assert found.pop("before").slice_ns > SLICE_NS
        assert {each.slice_ns for each in found.values()} == {SLICE_NS}


def test_another_policy_stays_as_somebody_chose_it() -> None:
    taken, found = asked_after("os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))")
    assert not taken
    assert found["after"] == found["before"]
