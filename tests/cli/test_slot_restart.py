"""What `appliance slots restart --data-dir` refuses before it stops a slot."""

from __future__ import annotations

import os
import sys

from appliance.cli.slot_restart import _refuse_others_processes
from appliance.errors import OperatorFault

NOBODY = 65534


def test_processes_of_another_user_are_refused_before_a_slot_is_stopped() -> None:
    others = os.getpid() if os.geteuid() == 0 else 1
    _refuse_others_processes({"ioproc 0.0": (os.getpid(), 1)}, 0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            _refuse_others_processes({"ioproc 0.0": (others, 1)}, 0)
        except OperatorFault as fault:
            code = 0 if "no slot was stopped" in str(fault) else 2
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_process_that_ended_meanwhile_is_no_reason_to_refuse() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    _refuse_others_processes({"ioproc 0.0": (child, 1)}, 0)
