"""Keeps the order of a partition when a record fails, for groups with `retry.ordered`. `key_order`: only that of a key.

A record that fails is not handed back. The consumer keeps it, gives nothing more of its partition, and gives it again
after the delay of its level. So what follows it waits. A *mark* beside the committed offset says how often it failed:

    again:OFFSET:N    the record at OFFSET, which is the next one, has failed N times

Behind it, after a space, may be a mark of `deaths`, because a record that has failed may kill when it comes again.
The consumer that gets the partition next reads the mark, and waits for the whole delay again. Past the maximum the
record is handed back as a dead letter. Records of such a topic are given one at a time for each partition, because the
application could not give back those that it already has. This file does no I/O and reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from appliance.protocol import retry_names as names
from appliance_client.kernel import ConsumerRecord
from appliance_client.values import OffsetAndMetadata, TopicPartition

_MARK: Final = re.compile(r"again:([0-9]{1,18}):([0-9]{1,6})(?: .*)?")
_LEVEL: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


class Rules(NamedTuple):
    """What the settings of a retry topic ask.

    `levels_s`: delays in seconds, at least one. `is_by_key`: only records with the key of a failed one wait for it.
    """

    levels_s: tuple[float, ...]
    retries_max: int
    is_by_key: bool = False

    def wait_s(self, times: int) -> float:
        """Return how long a record waits that has failed so often."""
        return self.levels_s[min(times, len(self.levels_s)) - 1]


class Again(NamedTuple):
    """A record that is kept, and how often it has failed."""

    offset: int
    times: int


def rules_of(configs: Mapping[str, str | None]) -> Rules | None:
    """Return the rules of a retry topic with these settings; None if it does not ask for the order."""
    if configs.get("retry.ordered") != "true" or not configs.get("retry.group"):
        return None
    levels = [_LEVEL.fullmatch(each.strip()) for each in (configs.get("retry.levels") or "").split(",")]
    waits_s = tuple(int(each[1]) * _UNITS_S[each[2]] for each in levels if each is not None)
    is_by_key = configs.get("retry.ordered.by.key") == "true"
    return Rules(waits_s or (10.0,), int(configs.get("retry.max") or 0), is_by_key)


class Ordered:
    """What a consumer keeps, by partition. `rules`: of each topic and retry topic that asks for the order."""

    __slots__ = ("_again", "rules")

    def __init__(self) -> None:
        self.rules: dict[str, Rules] = {}
        self._again: dict[TopicPartition, Again] = {}

    def found(self, place: TopicPartition, committed: OffsetAndMetadata | None) -> float:
        """This is committed for a partition that the consumer gets; return how long it waits, in seconds."""
        self._again.pop(place, None)
        mark = _MARK.fullmatch(committed.metadata or "") if committed is not None else None
        rules = self.rules.get(place.topic)
        if committed is None or mark is None or rules is None or int(mark[1]) != committed.offset:
            return 0.0
        again = self._again[place] = Again(int(mark[1]), int(mark[2]))
        return rules.wait_s(again.times)

    def text(self, place: TopicPartition, offset: int) -> str:
        """Return what is committed beside `offset`."""
        again = self._again.get(place)
        return f"again:{again.offset}:{again.times}" if again is not None and again.offset == offset else ""

    def beside(self, place: TopicPartition, mark: OffsetAndMetadata) -> OffsetAndMetadata:
        """Return a mark of `deaths` with what is said of the record."""
        return mark._replace(metadata=f"{self.text(place, mark.offset)} {mark.metadata}".strip())

    def give(self, place: TopicPartition, record: ConsumerRecord) -> None:
        """The record is given to the application: say in a header how often it has failed."""
        again = self._again.get(place)
        if again is None:
            return
        if again.offset != record.offset:
            del self._again[place]
            return
        headers = tuple(each for each in record.headers if each[0] != names.ATTEMPTS)
        record.headers = (*headers, (names.ATTEMPTS, b"%d" % again.times))

    def failed(self, record: ConsumerRecord) -> Again | None:
        """Keep a record that has failed; None if it has failed too often, or its topic does not ask for the order."""
        place = TopicPartition(record.topic, record.partition)
        rules = self.rules.get(record.topic)
        before = self._again.pop(place, None)
        if rules is None:
            return None
        times = before.times + 1 if before is not None and before.offset == record.offset else 1
        if times > rules.retries_max:
            return None
        again = self._again[place] = Again(record.offset, times)
        return again
