from __future__ import annotations

import random
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from appliance.channels.traffic_table import BUCKETS_NS, HISTOGRAM_WORDS, bucket_of
from appliance.clock import NS_PER_MS, ManualClock
from appliance.partition_access.access import PartitionAccess
from appliance.services.delay_topics import DelayTopics
from appliance.services.deliveries import PRODUCERS_MIN, Counts, Deliveries

NOW_MS = 1_800_000_000_000


def test_the_lateness_of_each_record_is_counted_in_its_bucket() -> None:
    chosen = random.Random(5)
    bounds_ms = [bound // NS_PER_MS + by for bound in BUCKETS_NS for by in (-1, 0, 1)]
    late_ms = [0, 0, -5, *bounds_ms, *chosen.choices([*bounds_ms, 10**9, -1], k=500), *[3] * 5]
    counts = Counts()
    expected = [0] * HISTOGRAM_WORDS
    for each in late_ms:
        late_ns = max(each, 0) * NS_PER_MS
        expected[bucket_of(late_ns)] += 1
        expected[0] += late_ns
    counts.delivered_at(NOW_MS, [NOW_MS - each for each in late_ms])
    counts.delivered_at(NOW_MS, [])
    assert counts.lateness == expected
    assert counts.delivered == len(late_ms)


def test_topics_that_come_and_go_take_no_memory_and_others_keep_their_numbers() -> None:
    there: set[UUID] = set()
    topics = SimpleNamespace(topic=lambda topic_id: SimpleNamespace() if topic_id in there else None)
    numbers = count(1)
    deliveries = Deliveries(
        cast(DelayTopics, topics),
        cast(PartitionAccess, cast(Any, None)),
        clock=ManualClock(),
        take_producer_id=lambda: next(numbers),
        counts=Counts(),
        changed=lambda: None,
    )
    stays = UUID(int=0)
    there.add(stays)
    assert deliveries.may_begin((stays, 0))
    first = deliveries._producers[stays, 0]
    for number in range(1, 5 * PRODUCERS_MIN):
        there.add(UUID(int=number))
        assert deliveries.may_begin((UUID(int=number), 0))
        there.discard(UUID(int=number))
    assert len(deliveries._producers) <= PRODUCERS_MIN + 1
    assert deliveries._producers[stays, 0] == first
