"""`appliance audit`: what came into a topic and what went out of it, by time bucket, as `__audit` has it.

It has nothing to do with `appliance audit-log`, which shows the audit journal of security events.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from appliance.cli.moments import moment
from appliance.cli.options import client_options
from appliance.cli.output import json_option, plain, print_json, print_table, shown_bytes
from appliance.cli.topic_client import ClientReader


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
    from appliance.views.audit import audit_report

    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise click.UsageError("--from must be before --to")
    with closing(ClientReader(bootstrap)) as reader:
        result = audit_report(reader, topic, from_ms=from_ms, to_ms=to_ms, group=group)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    from appliance.views.audit import bucket_text, finding_text

    buckets = result["buckets"]
    if not buckets and not result["findings"]:
        click.echo(f"Nothing was counted of topic {result['topic']} in this time.")
        return
    rows: list[tuple[object, ...]] = []
    for bucket in buckets:
        name = bucket_text(bucket["bucket"])
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
        click.echo(plain(finding_text(found)))
    for kind, number in result["unnamed"].items():
        click.echo(f"{kind}: {number} more that are not named")


def _numbers(sums: dict[str, Any]) -> tuple[object, ...]:
    delay = sums["delay"]
    return sums["records"], shown_bytes(sums["bytes"]), delay["p50_ms"], delay["p99_ms"], delay["max_ms"]


def _client(who: dict[str, Any]) -> str:
    return f"client {who['client']} ({who['principal']})" if who["client"] or who["principal"] else "unknown"
