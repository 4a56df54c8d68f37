"""`slots restart --data-dir` asks whether it may end a slot's processes before it stops the slot."""

from __future__ import annotations

import os

from appliance.cli.slot_restart import _send
from appliance.errors import OperatorFault
from tests.support.another_user import NOBODY

REFUSED = 7


def test_a_process_of_another_user_is_refused_before_anything_is_stopped() -> None:
    # Process 1 belongs to root.
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setresuid(NOBODY, NOBODY, NOBODY)
            _send(1, 0, 2)
        except OperatorFault as fault:
            code = REFUSED if "process 1 of slot 2 belongs to another user" in str(fault) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == REFUSED
