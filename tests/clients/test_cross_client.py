"""What one client wrote with each codec, every other one reads."""

from __future__ import annotations

import time
from functools import cache
from typing import Final

import pytest

from tests.clients.client import CODECS, Client, Record
from tests.clients.matrix import PLAYING
from tests.clients.play import Stage, within
from tests.clients.records import assert_offsets, grouped, mixed_records
from tests.support.raw_fetch import is_served

RECORDS: Final = 400


@cache
def written(writer: type[Client], stage: Stage) -> tuple[str, list[Record]]:
    """A topic of that writer, partition i in codec i, and what each partition holds."""
    topic = f"written-by-{writer.name}"
    stage.witness.create_topic(topic, len(CODECS))
    assert within(20, lambda: is_served(stage.address, topic, len(CODECS)))
    records = mixed_records(RECORDS, seed=21, run=100)
    client = writer(stage.address)
    try:
        for partition, codec in enumerate(CODECS):
            placed = [
                Record(each.key, each.value, each.headers, each.timestamp_ms, partition) for each in records
            ]
            client.produce(topic, placed, codec=codec)
    finally:
        client.close()
    return topic, records


@pytest.mark.parametrize("reader", PLAYING, ids=lambda kind: f"reader-{kind.name}")
@pytest.mark.parametrize("writer", PLAYING, ids=lambda kind: f"writer-{kind.name}")
def test_every_codec_of_one_client_is_read_by_another(
    writer: type[Client], reader: type[Client], stage: Stage
) -> None:
    topic, records = written(writer, stage)
    client = reader(stage.address)
    try:
        for partition, codec in enumerate(CODECS):
            received = client.consume(topic, partition, start=0, count=RECORDS)
            assert_offsets(received)
            for there, here in zip(records, received, strict=True):
                place = f"{codec}, offset {here.offset}"
                assert (here.key, here.value) == (there.key, there.value), place
                assert grouped(here.headers) == grouped(there.headers), place
                if writer.sets_timestamps:
                    assert here.timestamp_ms == there.timestamp_ms, place
                else:
                    assert abs(here.timestamp_ms - time.time() * 1000) < 3_600_000, place
    finally:
        client.close()
