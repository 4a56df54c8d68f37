"""The live tail of a topic: records as they come. A page that is slow, or too many records, skip to the newest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from appliance.cluster import TopicImage
from appliance.console.decoding import printable
from appliance.console.kafka_link import BrokerFault, LoginRefused
from appliance.console.pages.messages import PARTITIONS_MAX
from appliance.console.pages.overview import event
from appliance.console.reading import fetch_once, offsets
from appliance.console.records import ReadRecord, next_offset, read_records, size_of
from appliance.console.server import Response
from appliance.console.visit import Visit
from appliance.protocol.apis.list_offsets import LATEST_TIMESTAMP

ROUND_S: Final = 0.5
RECORDS_A_ROUND: Final = 40
"""Of all partitions together; older ones are skipped, and the page says how many."""
SILENCE_S: Final = 15.0
ROUND_BYTES_MAX: Final = 32 << 20
"""Of all records of a round; larger ones beyond it are skipped. A batch of a kilobyte may hold a record of 32 MiB."""
TAIL_BYTES_MAX: Final = 4_096
"""Of a value; the messages page shows more."""


def tail_page(visit: Visit) -> Response:
    """The page that listens to the stream."""
    topic = visit.topic(visit.asked("name"))
    return visit.page(
        "tail.html",
        topic=visit.look.topic(topic),
        partitions=min(len(topic.partitions), PARTITIONS_MAX),
        chosen=visit.asked("partition"),
    )


def tail_events(visit: Visit) -> Response:
    """The stream."""
    topic = visit.topic(visit.asked("name"))
    text = visit.asked("partition").strip()
    if text:
        partitions = [visit.number("partition", 0, minimum=0, maximum=len(topic.partitions) - 1)]
    else:
        partitions = list(range(min(len(topic.partitions), PARTITIONS_MAX)))
    return Response(content_type="text/event-stream", stream=_events(visit, topic.name, partitions))


def _events(visit: Visit, name: str, partitions: list[int]) -> Iterator[bytes]:
    site = visit.site
    with site.streams.one(visit.session):
        positions: dict[int, int] = {}
        silent_s = time.monotonic()
        yield b": listening\n\n"
        while not site.history.is_closed and site.sessions.is_open(
            visit.session, now_ns=site.clock.monotonic_ns()
        ):
            look = site.look()
            topic = None if look is None else look.image.topics.get(name)
            if topic is None:
                yield event("ended", "the topic is gone")
                return
            try:
                records, skipped = _round(visit, topic, partitions, positions)
            except BrokerFault as fault:
                # A user who cannot log in any more: to try again and again would fill the audit log.
                if fault.code is not None or isinstance(fault, LoginRefused):
                    yield event("ended", printable(str(fault)))
                    return
                records, skipped = [], 0  # a slot restarts; the next round asks again
            if skipped:
                yield event("skipped", skipped)
            visit.begin_round()
            for each in records:
                record = each.record
                key = visit.shown(record.key, topic=name, part="key", bytes_max=TAIL_BYTES_MAX)
                value = visit.shown(record.value, topic=name, part="value", bytes_max=TAIL_BYTES_MAX)
                yield event(
                    "record",
                    {
                        "partition": each.partition,
                        "offset": each.offset,
                        "time_ms": record.timestamp_ms,
                        "key": key.text,
                        "key_form": key.form,
                        "value": value.text,
                        "value_form": value.form,
                        "is_cut": value.is_cut,
                    },
                )
            if records or skipped:
                silent_s = time.monotonic()
            elif time.monotonic() - silent_s >= SILENCE_S:
                silent_s = time.monotonic()
                yield b": still here\n\n"
            time.sleep(ROUND_S)


def _round(
    visit: Visit, topic: TopicImage, partitions: list[int], positions: dict[int, int]
) -> tuple[list[ReadRecord], int]:
    """Return the new records, and how many were skipped; move the positions."""
    # A topic that was created again may have fewer.
    there = [each for each in partitions if each < len(topic.partitions)]
    ends = offsets(visit.link, topic, there, LATEST_TIMESTAMP)
    found: list[ReadRecord] = []
    skipped, bytes_left = 0, ROUND_BYTES_MAX
    for partition, end in ends.items():
        at = positions.get(partition, end)
        at = min(at, end)  # the log was truncated, or the topic created again
        if end - at > RECORDS_A_ROUND:
            skipped += end - RECORDS_A_ROUND - at
            at = end - RECORDS_A_ROUND
        if at < end:
            answer = fetch_once(visit.link, topic, partition, at)
            for each in read_records(answer, partition, from_offset=at):
                if each.offset >= end:
                    break
                size_bytes = size_of(each.record)
                if size_bytes > bytes_left:
                    skipped += 1
                    continue
                bytes_left -= size_bytes
                found.append(each)
            at = min(max(at, next_offset(answer, from_offset=at)), end) if answer.records else end
        positions[partition] = at
        # After each partition, so that large records of all partitions are not in memory together.
        found.sort(key=lambda each: (each.record.timestamp_ms, each.partition, each.offset))
        skipped += max(0, len(found) - RECORDS_A_ROUND)
        del found[:-RECORDS_A_ROUND]
    return found, skipped
