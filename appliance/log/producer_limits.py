"""How many producer ids the logs of one process remember; one object for the process, as its memory is.

| bound | option | beyond it |
|---|---|---|
| of one log | producer.ids.per.partition.max | the log forgets those of its ids that were silent the longest |
| of all logs of the process | producer.ids.max | so does the log that has a new one |

An id with an open transaction is never forgotten, and a log keeps its newest id. A forgotten producer's next batch is
taken as the first one of a producer that is not known, as after `producer.id.expiration.ms` and as by Apache Kafka: its
clients notice nothing. Only a batch that is sent again after its producer was forgotten is appended a second time; so
those go first whose last batch lies furthest back in the log.

Logs that close or reload do not say how many ids go with them, so `count` may be too high until `recount`, which
follows each checkpoint.
"""

from __future__ import annotations

from typing import Final

UNLIMITED: Final = 1 << 62


class ProducerLimits:
    """No bound until `set`: commands that read logs keep what they find.

    `count` ids are remembered, `forgotten` were since the start because a bound was reached."""

    __slots__ = ("count", "forgotten", "in_process", "per_log")

    def __init__(self) -> None:
        self.per_log = UNLIMITED
        self.in_process = UNLIMITED
        self.count = 0
        self.forgotten = 0

    def set(self, *, per_log: int, in_process: int) -> None:
        self.per_log = per_log
        self.in_process = in_process

    def recount(self, count: int) -> None:
        """All logs together remember `count` ids now."""
        self.count = count


PRODUCER_LIMITS: Final = ProducerLimits()
EVICTED_PART: Final = 16
"""A log that is full forgets this part of its ids at once, so that looking for them costs little for each."""
