"""`appliance audit`: what came into a topic and what went out of it, by time bucket, as `__audit` has it.

It has nothing to do with `appliance audit-log`, which shows the audit journal of security events.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from appliance.cli.client import asked, consumer, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.moments import moment
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table, shown_bytes

TOPIC: Final = "__audit"
POLL_S: Final = 0.5
STALL_S: Final = 30.0
MS_MAX: Final = 1 << 62
AHEAD_MS: Final = 3_600_000
"""How far the clock of a producer may be ahead: the default of message.timestamp.after.max.ms."""


@click.command(short_help="Show what came into a topic and what went out, by time bucket.")
@click.argument("topic")
@click.option(
    "--from",
    "from_ms",
    metavar="TIME",
    callback=moment,
    help="Only buckets from this time on: 2026-03-01T12:00:00Z, 2026-03-01 (UTC), or 30m (minutes ago).",
)
@click.option("--to", "to_ms", metavar="TIME", callback=moment, help="Only buckets before this time.")
@click.option("--group", "-g", metavar="GROUP", help="Only this consumer group.")
@json_option
@client_options
def audit(
    *,
    topic: str,
    from_ms: int | None,
    to_ms: int | None,
    group: str | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Show how many records came into TOPIC and went out, by time bucket, and how late; and what is missing or doubled.

    The topic needs the setting audit.enable. Numbers are about two seconds old. The command reads the topic __audit.
    """
    from appliance.message_audit.entry import decode
    from appliance.message_audit.report import Report

    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise click.UsageError("--from must be before --to")
    report = Report(
        topic,
        from_ms=0 if from_ms is None else from_ms,
        to_ms=MS_MAX if to_ms is None else to_ms,
        group=group,
    )
    for value in internal_values(bootstrap, TOPIC, topic, setting="audit.enable", from_ms=from_ms):
        entry = decode(value)
        if entry is not None:
            report.add(entry)
    result = report.result()
    if as_json:
        print_json(result)
    else:
        _print(result)


def internal_values(
    bootstrap: str, internal: str, topic: str | None, *, setting: str, from_ms: int | None = None
) -> Iterator[bytes | None]:
    """Return the values of an internal topic's records up to its end, from those on that were written at `from_ms`.

    Args:
        topic: must be there, unless it is None.
        setting: what the operator has to set, if the internal topic is not there. Empty: then it has no values.

    Raises:
        BrokerError: no broker answers, or one of the topics is not there.
    """
    from confluent_kafka import TopicPartition

    client = consumer(bootstrap, {})
    try:
        topics = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
        if not setting and internal not in topics:
            return
        if topic is not None and topic not in topics:
            raise BrokerError(f"topic {topic!r} does not exist, or you may not see it")
        if internal not in topics:
            raise BrokerError(
                f"topic {internal!r} does not exist, or you may not see it: no topic has {setting} = true yet"
            )
        place = TopicPartition(internal, 0)
        low, high = asked(lambda: client.get_watermark_offsets(place, timeout=REQUEST_TIMEOUT_S))
        start = low
        if from_ms is not None:
            # Entries are written after the time of their bucket, except where the clock of a producer is ahead.
            wanted = [TopicPartition(internal, 0, max(from_ms - AHEAD_MS, 0))]
            (found,) = asked(lambda: client.offsets_for_times(wanted, timeout=REQUEST_TIMEOUT_S))
            start = found.offset if found.offset >= 0 else high
        client.assign([TopicPartition(internal, 0, start)])
        yield from _values(client, start, high)
    finally:
        client.close()


def _values(client: Any, offset: int, end: int) -> Iterator[bytes | None]:
    heard_s = time.monotonic()
    while offset < end:
        messages = asked(lambda: client.consume(1000, POLL_S))
        if messages:
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > STALL_S:
            raise BrokerError(f"no record came for {STALL_S:.0f} s")
        for message in messages:
            if message.error() is not None:
                raise BrokerError(refusal(message.error()))
            offset = message.offset() + 1
            if message.offset() < end:
                yield message.value()


def _print(result: dict[str, Any]) -> None:
    buckets = result["buckets"]
    if not buckets and not result["findings"]:
        click.echo(f"Nothing was counted of topic {result['topic']} in this time.")
        return
    rows: list[tuple[object, ...]] = []
    for bucket in buckets:
        name = _time(bucket["bucket"])
        rows.append((name, "in", "", *_numbers(bucket["produced"]), None))
        rows += [
            (name, "in", _client(each), *_numbers(each), None)
            for each in bucket["producers"]
            if len(bucket["producers"]) > 1 or each["client"]
        ]
        rows += [
            (name, "out", f"group {each['group']}", *_numbers(each), each["difference"])
            for each in bucket["groups"]
        ]
        rows += [(name, "fetched", _client(each), *_numbers(each), None) for each in bucket["fetched"]]
    headings = ("BUCKET", "WAY", "WHO", "RECORDS", "BYTES", "P50 MS", "P99 MS", "MAX MS", "DIFFERENCE")
    print_table(headings, rows, right=headings[3:])
    for found in result["findings"]:
        click.echo(finding_text(found))
    for kind, number in result["unnamed"].items():
        click.echo(f"{kind}: {number} more that are not named")


def finding_text(found: dict[str, Any]) -> str:
    """Return a finding in one line."""
    first, last = found["first"], found["last"]
    span = str(first) if first == last else f"{first} to {last}"
    where = f"partition {found['partition']}, bucket {_time(found['bucket'])}"
    if found["kind"] in ("rewound", "unseen"):
        who = f"group {found['group']}" if found["group"] else "the audit"
        what = (
            "has gone back over" if found["kind"] == "rewound" else "has not seen, because they were removed,"
        )
        return f"{found['kind']}: {who} {what} offsets {span} ({where})"
    source = f" of {found['source']}" if found["source"] else ""
    return f"{found['kind']}: id {span}{source} ({where}, offset {found['offset']})"


def _numbers(sums: dict[str, Any]) -> tuple[object, ...]:
    delay = sums["delay"]
    return sums["records"], shown_bytes(sums["bytes"]), delay["p50_ms"], delay["p99_ms"], delay["max_ms"]


def _client(who: dict[str, Any]) -> str:
    return f"client {who['client']} ({who['principal']})" if who["client"] or who["principal"] else "unknown"


def _time(bucket_ms: int) -> str:
    if bucket_ms < 0:
        return "no time"
    try:
        return datetime.fromtimestamp(bucket_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(bucket_ms)
