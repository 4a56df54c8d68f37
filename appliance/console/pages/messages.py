"""Records of a topic: the newest, from the beginning, from an offset or a time; with conditions; decoded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from appliance.cluster import TopicImage
from appliance.console.conditions import Conditions
from appliance.console.decoding import FORMS, shown
from appliance.console.reading import Budget, Found, backward, bounds, forward, offsets
from appliance.console.records import ReadRecord
from appliance.console.server import Response
from appliance.console.visit import BadInput, Visit

LIMIT: Final = 50
LIMIT_MAX: Final = 500
PARTITIONS_MAX: Final = 64
"""Of a topic with more, a page reads these from the first on, unless it names one."""
FROM: Final = ("newest", "beginning", "offset", "time")
HEADERS_SHOWN: Final = 50
PAGE_VALUE_BYTES: Final = 8 << 20
"""Of all keys and values of one page together."""
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def messages(visit: Visit) -> Response:
    """Some records, the newest first or in order."""
    topic = visit.topic(visit.asked("name"))
    start = visit.asked("from", "newest")
    if start not in FROM:
        raise BadInput(f"from: must be one of {', '.join(FROM)}")
    form = visit.asked("form", "auto")
    if form not in FORMS:
        raise BadInput(f"form: must be one of {', '.join(FORMS)}")
    limit = visit.number("limit", LIMIT, minimum=1, maximum=LIMIT_MAX)
    partitions = _partitions(visit, topic)
    conditions = Conditions(visit.asked("key"), visit.asked("contains"), visit.asked("header"))
    budget = Budget()
    found = _read(visit, topic, partitions, start, limit=limit, conditions=conditions, budget=budget)
    records = [each for of_one in found for each in of_one.records]
    if start == "newest":
        records.sort(key=lambda each: (each.record.timestamp_ms, each.partition, each.offset), reverse=True)
    else:
        records.sort(key=lambda each: (each.record.timestamp_ms, each.partition, each.offset))
    is_one = len(found) == 1
    return visit.page(
        "messages.html",
        topic=visit.look.topic(topic),
        partitions=partitions,
        is_part=len(partitions) < len(topic.partitions) and not visit.asked("partition"),
        chosen=visit.asked("partition"),
        rows=shown_records(visit, topic.name, records[:limit], form),
        query={name: visit.asked(name) for name in ("offset", "time", "key", "contains", "header")},
        start=start,
        starts=FROM,
        form=form,
        forms=FORMS,
        limit=limit,
        looked_at=budget.records,
        unreadable=budget.unreadable[:10],
        has_conditions=conditions.is_set,
        is_complete=all(each.is_complete for each in found),
        older=_older(found[0], start) if is_one else None,
        newer=_newer(found[0], start) if is_one else None,
    )


def _partitions(visit: Visit, topic: TopicImage) -> list[int]:
    text = visit.asked("partition").strip()
    if text:
        return [visit.number("partition", 0, minimum=0, maximum=len(topic.partitions) - 1)]
    return list(range(min(len(topic.partitions), PARTITIONS_MAX)))


def _read(
    visit: Visit,
    topic: TopicImage,
    partitions: list[int],
    start: str,
    *,
    limit: int,
    conditions: Conditions,
    budget: Budget,
) -> list[Found]:
    link = visit.link
    ends = bounds(link, topic, partitions)
    first: dict[int, int] = {}
    if start == "offset":
        wanted = visit.number("offset", 0)
        first = {each: min(max(wanted, low), high) for each, (low, high) in ends.items()}
    elif start == "time":
        found = offsets(link, topic, partitions, time_ms(visit.asked("time")))
        first = {each: found.get(each, -1) if found.get(each, -1) >= 0 else ends[each][1] for each in ends}
    read = backward if start == "newest" else forward
    before = visit.number("before", -1, minimum=0) if visit.asked("before") else None
    results = []
    for each, (low, high) in ends.items():
        end = min(high, max(low, before)) if before is not None and len(ends) == 1 else high
        results.append(
            read(
                link,
                topic,
                each,
                start=first.get(each, low),
                end=end,
                limit=limit,
                matches=conditions.hold,
                budget=budget,
            )
        )
    return results


def _older(found: Found, start: str) -> int | None:
    """Return the offset below which the next page reads; None where there is nothing."""
    if start != "newest":
        return None
    if not found.is_complete:
        return found.first
    return found.records[0].offset if found.records and found.records[0].offset > 0 else None


def _newer(found: Found, start: str) -> int | None:
    """Return the offset from which the next page reads; None for the newest."""
    return None if start == "newest" or (not found.records and found.is_complete) else found.next


def time_ms(text: str) -> int:
    """Return milliseconds since 1970 of a number, or of a time in ISO 8601, UTC if it names no zone.

    Raises:
        BadInput: it is neither.
    """
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 18:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise BadInput("time: write 2026-11-27T08:00, in UTC, or milliseconds since 1970") from None


def shown_records(visit: Visit, topic: str, records: list[ReadRecord], form: str) -> list[dict[str, Any]]:
    """Return what a page shows of records. All together stay below PAGE_VALUE_BYTES."""
    each_max = visit.site.settings.console.value_max_bytes
    bytes_max = max(64, min(each_max, PAGE_VALUE_BYTES // max(1, len(records))))
    rows = []
    for each in records:
        record = each.record
        headers_max = max(64, bytes_max // max(1, min(len(record.headers), HEADERS_SHOWN)))
        rows.append(
            {
                "partition": each.partition,
                "offset": each.offset,
                "time_ms": record.timestamp_ms,
                "key": visit.shown(record.key, topic=topic, part="key", form=form, bytes_max=bytes_max),
                "value": visit.shown(record.value, topic=topic, part="value", form=form, bytes_max=bytes_max),
                "headers": [
                    (name[:headers_max], shown(content, form=form, bytes_max=headers_max))
                    for name, content in record.headers[:HEADERS_SHOWN]
                ],
                "headers_count": len(record.headers),
                "codec": CODECS[each.codec] if each.codec < len(CODECS) else str(each.codec),
                "batch_bytes": each.batch_bytes,
                "is_transactional": each.is_transactional,
            }
        )
    return rows
