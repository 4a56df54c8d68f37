"""What a start must not load: each process would hold it, and the first record wait for it (decision 0053)."""

from __future__ import annotations

import subprocess
import sys

from appliance.extras import EXTRA_OF

# Of these all but the last two come with C libraries of megabytes.
TOO_HEAVY = ("numpy", "_hashlib", "_ssl", "kazoo", "confluent_kafka", "re2", "email", "asyncio")

LOADED = """
import sys
from appliance.cli import serve
from appliance.control.supervisor import main
from appliance.control.supervisor.entry_points import ENTRY_POINTS, load
for entry_point in ENTRY_POINTS.values():
    load(entry_point)
print(*sorted(sys.modules))
"""


def test_code_of_all_processes_is_loaded_without_what_few_of_them_need() -> None:
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = said.stdout.split()
    assert "appliance.ioproc.worker" in loaded
    assert [name for name in TOO_HEAVY if name in loaded] == []
    # The broker alone does not install these (decision 0090).
    assert [name for name in EXTRA_OF if name in loaded] == []
