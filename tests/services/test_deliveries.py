from __future__ import annotations

import random

from appliance.channels.traffic_table import BUCKETS_NS, HISTOGRAM_WORDS, bucket_of
from appliance.clock import NS_PER_MS
from appliance.services.deliveries import Counts

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
