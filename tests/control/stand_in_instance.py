"""Serves an instance of stand-ins: `python -m tests.control.stand_in_instance DATA_DIR [name=value …]`.

A program of its own, so that nothing is imported before the supervisor says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

from appliance.channels.roles import RoleKind
from appliance.config import load_settings
from appliance.control.supervisor.entry_points import ENTRY_POINTS
from appliance.control.supervisor.main import run

ECHO = "tests.netproc.echo_process:run"


def main(data_dir: str, *arguments: str) -> int:
    """`acceptor=real` and `netproc=echo` among the arguments replace those stand-ins; `unkillable=TOKEN` names a role
    that the kernel is said to hold, and that is waited for no longer than half a second."""
    entry_points = dict.fromkeys(RoleKind, "tests.control.stand_ins:run")
    overrides = dict(argument.split("=", 1) for argument in arguments)
    if overrides.pop("acceptor", None) == "real":
        entry_points[RoleKind.ACCEPTOR] = ENTRY_POINTS[RoleKind.ACCEPTOR]
    if overrides.pop("netproc", None) == "echo":
        entry_points[RoleKind.NETPROC] = ECHO
    if (held := overrides.pop("unkillable", None)) is not None:
        _hold(held)
    settings = load_settings(None, overrides | {"data.dir": str(Path(data_dir))})
    return run(settings, entry_points=entry_points)


def _hold(token: str) -> None:
    """Both modules bring numpy, and that a thread, which is there before the first fork; hence no import above."""
    from appliance.control.supervisor import duty_cycle
    from appliance.control.supervisor.children import ChildRecord

    duty_cycle.UNKILLABLE_MS = 500
    kill = ChildRecord.kill

    def kill_unless_held(self: ChildRecord) -> None:
        if self.role.token != token:
            kill(self)

    ChildRecord.kill = kill_unless_held  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
