"""A form that produces one record."""

from __future__ import annotations

import time
from typing import Final

from appliance.cluster import TopicImage
from appliance.console.decoding import typed
from appliance.console.kafka_link import BrokerFault, not_done
from appliance.console.partitioning import partition_of
from appliance.console.server import Response
from appliance.console.topic_link import append
from appliance.console.visit import BadInput, Visit
from appliance.protocol.records.record import Record

FORMS: Final = ("text", "hex", "null")
HEADERS_MAX: Final = 100


def produce_page(visit: Visit) -> Response:
    """The form."""
    topic = visit.topic(visit.asked("name"))
    return _form(visit, topic, text="", status=200)


def _form(visit: Visit, topic: TopicImage, *, text: str, status: int) -> Response:
    return visit.page(
        "produce.html",
        status=status,
        topic=visit.look.topic(topic),
        forms=FORMS,
        fields=dict(visit.request.form),
        text=text,
    )


def produce(visit: Visit) -> Response:
    """Append the record, and show it."""
    topic = visit.topic(visit.asked("name"))
    try:
        key = _typed(visit, "key", default="null")
        value = _typed(visit, "value", default="text")
        headers = _headers(visit.asked("headers"))
        if visit.asked("partition").strip():
            partition = visit.number("partition", 0, minimum=0, maximum=len(topic.partitions) - 1)
        else:
            partition = partition_of(key, len(topic.partitions))
        record = Record(value, key, headers, int(time.time() * 1000))
        offset = append(visit.link, topic, partition, [record])
    except (BadInput, BrokerFault) as fault:
        return _form(visit, topic, text=not_done("The record was not produced", fault), status=400)
    visit.done(f"record produced: partition {partition}, offset {offset}")
    return visit.back_to(
        "/topic/messages",
        name=topic.name,
        partition=str(partition),
        **{"from": "offset", "offset": str(offset)},
    )


def _typed(visit: Visit, name: str, *, default: str) -> bytes | None:
    form = visit.asked(f"{name}_form", default)
    if form not in FORMS:
        raise BadInput(f"{name}: must be one of {', '.join(FORMS)}")
    try:
        return typed(visit.asked(name), form)
    except ValueError:
        raise BadInput(f"{name}: hex is pairs of digits from 0 to f") from None


def _headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    found: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise BadInput(f"headers: write NAME: VALUE, one on each line, and not {line!r}")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > HEADERS_MAX:
        raise BadInput(f"headers: at most {HEADERS_MAX}")
    return tuple(found)
