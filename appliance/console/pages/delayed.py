"""Delayed records: how many wait for each topic, those that are due first, those with an id; cancel.

What the internal topics say is read by `views/delayed.py`, as `appliance delayed` reads it.
"""

from __future__ import annotations

from typing import Final

from appliance.cluster import DELAYED_STATE
from appliance.console.kafka_link import BrokerFault, not_done
from appliance.console.pages.messages import PAGE_VALUE_BYTES
from appliance.console.reading import Budget
from appliance.console.server import Response
from appliance.console.topic_link import BudgetOver, LinkReader, LinkWriter
from appliance.console.visit import BadInput, Visit
from appliance.views.delayed import DelayedView, Soonest, WaitingView, cancelling, delivery_id
from appliance.views.topic_access import NotShown

LIMIT: Final = 100
LIMIT_MAX: Final = 1_000
NAMED_MAX: Final = 100
"""Records with one id that a page shows."""
REMEMBERED_MAX: Final = 100_000
TOPICS_SHOWN: Final = 200


def delayed(visit: Visit) -> Response:
    """How many records wait for each topic, and those that are due first."""
    name = visit.asked("topic").strip()
    limit = visit.number("limit", LIMIT, minimum=1, maximum=LIMIT_MAX)
    soonest = Soonest(limit)
    is_complete = True
    reader = LinkReader(visit, Budget())
    if name:
        visit.topic(name)
    try:
        soonest.take(_view(reader).waiting(name or None))
    except BudgetOver:
        is_complete = False
    return visit.page(
        "delayed.html",
        topic=name,
        limit=limit,
        counts=sorted(soonest.counts.items(), key=lambda each: (soonest.due_ms[each[0]], each[0]))[
            :TOPICS_SHOWN
        ],
        topics_count=len(soonest.counts),
        due_ms=soonest.due_ms,
        rows=soonest.first(),
        count=soonest.count,
        is_complete=is_complete,
        is_there=DELAYED_STATE in reader.topics(),
        now_ms=visit.site.clock.now_ms(),
    )


def _view(reader: LinkReader) -> DelayedView:
    return DelayedView(reader, remembered_max=REMEMBERED_MAX)


def _id(visit: Visit) -> bytes:
    try:
        return delivery_id(visit.asked("id"))
    except ValueError as fault:
        raise BadInput(f"id: {fault}") from None


def record(visit: Visit) -> Response:
    """The records of a topic with one id, and the button that cancels them."""
    topic, name = visit.topic(visit.asked("topic")), _id(visit)
    found: list[WaitingView] = []
    is_complete = True
    view = _view(LinkReader(visit, Budget()))
    try:
        for each in view.waiting(topic.name):
            if each.waiting.delivery_id == name and len(found) < NAMED_MAX:
                found.append(each)
    except BudgetOver:
        is_complete = False
    try:
        view.require_delays(topic.name)
        why_not = ""
    except NotShown as fault:
        why_not = str(fault)
    found.sort(key=lambda each: each.waiting.due_ms)
    bytes_max = PAGE_VALUE_BYTES // max(1, len(found))
    return visit.page(
        "delayed_record.html",
        topic=topic.name,
        name=visit.asked("id"),
        rows=[
            (
                each,
                visit.shown(each.waiting.record.key, topic=topic.name, part="key", bytes_max=bytes_max),
                visit.shown(each.waiting.record.value, topic=topic.name, part="value", bytes_max=bytes_max),
            )
            for each in found
        ],
        is_complete=is_complete,
        why_not=why_not,
        now_ms=visit.site.clock.now_ms(),
    )


def cancel(visit: Visit) -> Response:
    """Cancel the records of a topic with one id: one record that cancels goes to each partition."""
    topic, name = visit.topic(visit.asked("topic")), _id(visit)
    _view(LinkReader(visit, Budget())).require_delays(topic.name)
    writer = LinkWriter(visit)
    failed = 0
    for partition in range(len(topic.partitions)):
        try:
            writer.send(topic.name, None, None, cancelling(name), partition=partition)
            writer.finish()
        except BrokerFault as fault:
            failed += 1
            if failed <= 3:  # others fail for the same reason
                visit.failed(not_done(f"{topic.name}-{partition}: nothing was cancelled", fault))
    if failed < len(topic.partitions):
        visit.done(
            f"records of {topic.name} with the id {visit.asked('id')} are cancelled, if they still waited"
        )
    return visit.back_to("/delayed/record", topic=topic.name, id=visit.asked("id"))
