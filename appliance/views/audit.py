"""The report of the message audit: what came into a topic and what went out of it, as `__audit` has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from appliance.message_audit.entry import decode
from appliance.message_audit.report import Report
from appliance.views.topic_access import NotShown, TopicReader

AUDIT: Final = "__audit"
AUDIT_ENABLE: Final = "audit.enable"
MS_MAX: Final = 1 << 62
AHEAD_MS: Final = 3_600_000
"""How far the clock of a producer may be ahead: the default of message.timestamp.after.max.ms."""


def audit_report(
    reader: TopicReader, topic: str, *, from_ms: int | None, to_ms: int | None, group: str | None
) -> dict[str, Any]:
    """Return the report of a topic, with stable keys (`Report.result`).

    Raises:
        NotShown: the topic is not there, or no topic is audited.
    """
    report = Report(
        topic,
        from_ms=0 if from_ms is None else from_ms,
        to_ms=MS_MAX if to_ms is None else to_ms,
        group=group,
    )
    for value in internal_values(reader, AUDIT, topic, setting=AUDIT_ENABLE, from_ms=from_ms):
        entry = decode(value)
        if entry is not None:
            report.add(entry)
    return report.result()


def internal_values(
    reader: TopicReader, internal: str, topic: str | None, *, setting: str, from_ms: int | None = None
) -> Iterator[bytes | None]:
    """Yield the values of an internal topic's records up to its end, from those on that were written at `from_ms`.

    Args:
        topic: must be there, unless it is None.
        setting: what the operator has to set, if the internal topic is not there. Empty: then it has no values.

    Raises:
        NotShown: one of the topics is not there.
    """
    topics = reader.topics()
    if not setting and internal not in topics:
        return
    if topic is not None and topic not in topics:
        raise NotShown(f"topic {topic!r} does not exist, or you may not see it")
    if internal not in topics:
        raise NotShown(
            f"topic {internal!r} does not exist, or you may not see it: no topic has {setting} = true yet"
        )
    place = internal, 0
    ends = reader.ends([place], read_committed=True)
    starts = reader.starts([place])
    if place not in ends or place not in starts:
        raise NotShown(f"{internal}-0 has no leader now")
    if from_ms is not None:
        # Entries are written after the time of their bucket, except where the clock of a producer is ahead.
        found = reader.offset_at(place, max(from_ms - AHEAD_MS, 0))
        starts[place] = ends[place] if found is None else max(found, starts[place])
    for each in reader.records(starts, ends):
        yield each.record.value


def finding_text(found: dict[str, Any]) -> str:
    """Return a finding in one line."""
    first, last = found["first"], found["last"]
    span = str(first) if first == last else f"{first} to {last}"
    where = f"partition {found['partition']}, bucket {bucket_text(found['bucket'])}"
    if found["kind"] in ("rewound", "unseen"):
        who = f"group {found['group']}" if found["group"] else "the audit"
        what = (
            "has gone back over" if found["kind"] == "rewound" else "has not seen, because they were removed,"
        )
        return f"{found['kind']}: {who} {what} offsets {span} ({where})"
    source = f" of {found['source']}" if found["source"] else ""
    return f"{found['kind']}: id {span}{source} ({where}, offset {found['offset']})"


def bucket_text(bucket_ms: int) -> str:
    """Return when a bucket begins, in UTC; bucket -1 is of records without a time."""
    if bucket_ms < 0:
        return "no time"
    try:
        return datetime.fromtimestamp(bucket_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(bucket_ms)
