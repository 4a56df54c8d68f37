"""What the active controller counts in its row of the process table.

| counter | holds |
|---|---|
| 0 | topics |
| 1 | partitions |
| 2 | changes that wait for a process to confirm them |
| 3 | ISR shrinks: replicas that left an ISR, since this controller became active |
| 4 | ISR expansions: replicas that joined an ISR, since this controller became active |
"""

from __future__ import annotations

from typing import Final

from appliance.ipc.process_table import COUNTER_0

TOPICS: Final = COUNTER_0
PARTITIONS: Final = COUNTER_0 + 1
PENDING_CHANGES: Final = COUNTER_0 + 2
ISR_SHRINKS: Final = COUNTER_0 + 3
ISR_EXPANSIONS: Final = COUNTER_0 + 4
