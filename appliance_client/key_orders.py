"""All partitions of a consumer of which the group asks for the order of keys (`key_order`): which one has its turn.

A record that may kill its consumer is given alone: no other record of any partition is in the same poll, because nobody
could say which of the two has killed.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance_client.fetching import Fetching
from appliance_client.interceptors import Records
from appliance_client.key_order import KeyOrder
from appliance_client.ordered import Rules
from appliance_client.reading import Reading
from appliance_client.values import OffsetAndMetadata, TopicPartition


class KeyOrders:
    """They share the polls with the other partitions of the consumer.

    Args:
        fetching: where records come from.
        finds_deaths: find records that kill consumers.

    `partitions`: the reading tells one assignment from the next.
    """

    __slots__ = ("_fetching", "_finds_deaths", "_was_alone", "partitions")

    def __init__(self, fetching: Fetching, *, finds_deaths: bool) -> None:
        self.partitions: dict[TopicPartition, tuple[Reading, KeyOrder]] = {}
        self._fetching = fetching
        self._finds_deaths = finds_deaths
        self._was_alone = False

    def begin(self, place: TopicPartition, rules: Rules, committed: OffsetAndMetadata | None) -> None:
        """Keep the order of a partition that is assigned. `committed`: by the group, or None."""
        self.partitions[place] = (
            self._fetching.readings[place],
            KeyOrder(rules, committed, finds_deaths=self._finds_deaths),
        )

    def of(self, place: TopicPartition) -> KeyOrder | None:
        """Return what keeps the order of a partition; None if the group does not ask for it."""
        reading, in_order = self.partitions.get(place, (None, None))
        return in_order if reading is not None and reading is self._fetching.readings.get(place) else None

    def take(self, records_max: int, now_s: float) -> Records:
        """As `Fetching.take`, in the order that the group asks for."""
        for place in [each for each in self.partitions if self.of(each) is None]:
            del self.partitions[place]
            self._fetching.most.pop(place, None)
        is_alone_next = (
            not self._was_alone
        )  # otherwise a partition that gives one at a time would stop the others
        while True:
            if is_alone_next and (alone := self._take_alone(now_s)):
                self._was_alone = True
                return alone
            self._fetching.most.update(self._room())
            taken = self._fetching.take(records_max)
            read = {place: taken.pop(place) for place in list(taken) if place in self.partitions}
            left = records_max - sum(map(len, taken.values()))
            for place in list(self.partitions):
                # Behind the others: next time each is another one's turn.
                reading, in_order = self.partitions[place] = self.partitions.pop(place)
                given = in_order.exchange(
                    read.get(place, ()),
                    0 if reading.paused or reading.held else left,
                    now_s,
                    high_watermark=reading.high_watermark,
                )
                if given:
                    taken[place] = given
                    left -= len(given)
            if taken:
                self._was_alone = False
                return taken
            if not read and is_alone_next:
                return taken
            is_alone_next = True

    def _take_alone(self, now_s: float) -> Records:
        for place, (reading, in_order) in self.partitions.items():
            if reading.paused or reading.held:
                continue
            record = in_order.exchange_alone(now_s)
            if record is not None:
                self.partitions[place] = self.partitions.pop(place)
                return {place: [record]}
        return {}

    def _room(self) -> Mapping[TopicPartition, int]:
        return {
            place: 0 if reading.position is None else in_order.room(reading.position)
            for place, (reading, in_order) in self.partitions.items()
        }

    def polls(self, *, is_done: bool) -> None:
        """See `KeyOrder.polls`."""
        for _, in_order in self.partitions.values():
            in_order.polls(is_done=is_done)

    def marks(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is to be committed before the application gets what was taken."""
        due = {
            place: in_order.mark(reading.position) for place, (reading, in_order) in self.partitions.items()
        }
        return {place: each for place, each in due.items() if each is not None}

    def is_deadly(self, place: TopicPartition, offset: int) -> bool:
        """See `KeyOrder.is_deadly`."""
        in_order = self.of(place)
        return in_order is not None and in_order.is_deadly(offset)
