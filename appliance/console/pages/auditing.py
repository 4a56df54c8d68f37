"""The message audit: what came into a topic and went out of it, by time bucket; delays; what is missing or doubled.

The report is the one of `appliance audit` (`views/audit.py`).
"""

from __future__ import annotations

from typing import Any, Final

from appliance.console.charts import Bar, bars
from appliance.console.pages.times import asked_ms
from appliance.console.reading import Budget
from appliance.console.server import Response
from appliance.console.topic_link import LinkReader
from appliance.console.visit import BadInput, Visit
from appliance.views.audit import AUDIT_ENABLE, audit_report, bucket_text, finding_text
from appliance.views.moments import moment_ms

SINCE: Final = "1h"
"""Where a page begins that names no time: `__audit` may hold weeks."""
BUCKETS_MAX: Final = 240
ROWS_MAX: Final = 2_000
FINDINGS_SHOWN: Final = 200


def audit(visit: Visit) -> Response:
    """The form, and the report of a topic."""
    name = visit.asked("topic").strip()
    topics = visit.image.topics
    audited = [each for each in visit.topic_names() if topics[each].configs.get(AUDIT_ENABLE) == "true"]
    fields = {"from": visit.asked("from", SINCE), "to": visit.asked("to"), "group": visit.asked("group")}
    if not name:
        return visit.page("audit.html", topic="", audited=audited, fields=fields, report=None)
    visit.topic(name)
    from_ms = asked_ms(visit, "from") if "from" in visit.request.query else moment_ms(SINCE)
    to_ms = asked_ms(visit, "to")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise BadInput("from: must be before to")
    report = audit_report(
        LinkReader(visit, Budget()), name, from_ms=from_ms, to_ms=to_ms, group=visit.asked("group") or None
    )
    buckets = report["buckets"][-BUCKETS_MAX:]
    rows = list(_rows(buckets))
    findings = report["findings"]
    return visit.page(
        "audit.html",
        topic=name,
        audited=audited,
        fields=fields,
        report=report,
        is_part=len(report["buckets"]) > len(buckets) or len(rows) > ROWS_MAX,
        rows=rows[-ROWS_MAX:],
        charts=_charts(buckets),
        findings=[(each["kind"], finding_text(each)) for each in findings[:FINDINGS_SHOWN]],
        findings_count=len(findings),
    )


def _rows(buckets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of the table: what came in, from whom; what went out, to which group; who fetched."""
    rows: list[dict[str, Any]] = []
    for bucket in buckets:
        when = bucket_text(bucket["bucket"])

        def row(way: str, who: str, sums: dict[str, Any], when: str = when) -> dict[str, Any]:
            return {"bucket": when, "way": way, "who": who, "difference": sums.get("difference"), **sums}

        rows.append(row("in", "", bucket["produced"]))
        if len(bucket["producers"]) > 1 or any(each["client"] for each in bucket["producers"]):
            rows += [row("in", _client(each), each) for each in bucket["producers"]]
        rows += [row("out", f"group {each['group']}", each) for each in bucket["groups"]]
        rows += [row("fetched", _client(each), each) for each in bucket["fetched"]]
    return rows


def _client(who: dict[str, Any]) -> str:
    return f"client {who['client']} ({who['principal']})" if who["client"] or who["principal"] else "unknown"


def _charts(buckets: list[dict[str, Any]]) -> list[tuple[str, list[Bar], int]]:
    """Return title, bars and highest value of what was produced, and of what went out to each group."""
    timed = [each for each in buckets if each["bucket"] >= 0]
    if not timed:
        return []
    series: dict[str, dict[int, int]] = {"Produced": {}}
    for bucket in timed:
        series["Produced"][bucket["bucket"]] = bucket["produced"]["records"]
        for group in bucket["groups"]:
            series.setdefault(f"Consumed by group {group['group']}", {})[bucket["bucket"]] = group["records"]
    first, last = timed[0]["bucket"], timed[-1]["bucket"]
    width_ms = max(1, timed[0]["bucket_ms"])
    highest = max(max(values.values(), default=0) for values in series.values())
    return [
        (title, bars(values, first=first, last=last, width=width_ms, highest=highest), max(values.values()))
        for title, values in list(series.items())[:12]
    ]
