"""What a network process makes of batches with delayed records, beside real rings and a real metadata image."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.cluster import (
    DELAYED_CANCELS,
    DELAYED_TRANSACTIONS,
    PartitionImage,
    TopicImage,
)
from appliance.delivery.division import RefusedDelay
from appliance.delivery.levels import Levels
from appliance.delivery.waiting import waiting_of
from appliance.ipc.doorbell import Doorbell
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, decode_records, encode_batch
from appliance.requests.log_handlers.delayed_records import DelayedRecords
from appliance.requests.topic_routes import PartitionRoute
from appliance.requests.transaction_questions import TransactionQuestions
from tests.requests.serving import INCARNATION, TOPIC, Serving

DELAYED = Record(b"x", headers=(("delivery.delay", b"17000"),), timestamp_ms=1_000)


class Delaying(Serving):
    """TOPIC has exact delays, until it `is_deleted`; the levels are there."""

    is_deleted = False
    _bell = -1

    def topics(self) -> dict[str, TopicImage]:
        partition = PartitionImage(0, 0, INCARNATION, 0, 0, (0,), (0,))
        services = self.settings.services
        levels = {
            *Levels(services.delay_levels, services.delay_exact_levels).topics,
            *(DELAYED_CANCELS, DELAYED_TRANSACTIONS),
        }
        made = {name: TopicImage(name, UUID(int=6), (partition,), internal=True) for name in levels}
        if not self.is_deleted:
            configs = {"delivery.delay.enable": "true", "delivery.delay.mode": "exact"}
            made[TOPIC] = TopicImage(TOPIC, UUID(int=5), (partition,), configs)
        return made

    def delayed_records(self) -> DelayedRecords:
        self._bell = Doorbell.create_eventfd()
        return DelayedRecords(
            self.routes,
            self.lines,
            self.settings,
            pool=self.pool,
            clock=self.clock,
            bells=(Doorbell(self._bell, memoryview(array("q", [0]))),),
            timers=self.timers,
            questions=TransactionQuestions(self.coordinators, self.pool, self.timers, self.clock),
        )

    def close(self) -> None:
        if self._bell >= 0:
            os.close(self._bell)
        super().close()

    def route(self) -> PartitionRoute:
        topic = self.routes.by_name(TOPIC)
        assert topic is not None
        route = topic.partition(0)
        assert route is not None
        return route


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Delaying]:
    made = Delaying(tmp_path)
    yield made
    made.close()


def test_records_of_a_topic_that_was_deleted_meanwhile_are_stored_as_they_were_divided(
    house: Delaying,
) -> None:
    delayed = house.delayed_records()
    divided = delayed.divide(house.route(), memoryview(encode_batch([DELAYED])))
    assert divided is not None
    house.is_deleted = True
    house.publish()
    [((level, *_), batch)] = delayed.batches(divided, 40)
    [waiting] = map(waiting_of, decode_records(batch))
    assert (waiting.topic_id, waiting.offset, waiting.record.value) == (UUID(int=5), 40, b"x")
    services = house.settings.services
    assert Levels(services.delay_levels, services.delay_exact_levels).names[level] == "exact_1m"
    delayed.give(divided)


def test_a_batch_that_cannot_be_divided_is_refused_alone(house: Delaying) -> None:
    delayed, batch = house.delayed_records(), memoryview(encode_batch([DELAYED]))
    batch.release()
    with pytest.raises(RefusedDelay) as refused:
        delayed.divide(house.route(), batch)
    assert refused.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
