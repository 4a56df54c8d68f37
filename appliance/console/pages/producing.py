"""A form that produces one record."""

from __future__ import annotations

import random
import time
from typing import Final

from appliance.cluster import NO_LEADER, TopicImage
from appliance.console.decoding import typed
from appliance.console.kafka_link import BrokerFault, check, exchange, not_done
from appliance.console.records import produce_request, produced
from appliance.console.server import Response
from appliance.console.visit import BadInput, Visit
from appliance.protocol.records.record import Record, encode_batch

FORMS: Final = ("text", "hex", "null")
HEADERS_MAX: Final = 100
TIMEOUT_MS: Final = 20_000

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


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
        offset = _produced(visit, topic, partition, Record(value, key, headers, int(time.time() * 1000)))
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


def _produced(visit: Visit, topic: TopicImage, partition: int, record: Record) -> int:
    """Return the offset of the record."""
    leader = topic.partitions[partition].leader
    if leader == NO_LEADER:
        raise BrokerFault(f"{topic.name}-{partition} has no leader")
    request = produce_request(topic.name, partition, encode_batch([record]), timeout_ms=TIMEOUT_MS)
    frame = visit.link.use(lambda connection: exchange(connection, request), slot=leader, is_repeatable=False)
    code, offset = produced(frame)
    check(code)
    return offset


def partition_of(key: bytes | None, partitions: int) -> int:
    """Return the partition that Kafka's producers choose: by the hash of the key; any one without a key."""
    if key is None:
        return random.randrange(partitions)
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash of Kafka's default partitioner (Austin Appleby's MurmurHash2, seed 0x9747b28c)."""
    mixed = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _WORD
        word = (word ^ word >> 24) * _FACTOR & _WORD
        mixed = (mixed * _FACTOR & _WORD) ^ word
    if rest := data[whole:]:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _FACTOR & _WORD
    mixed = (mixed ^ mixed >> 13) * _FACTOR & _WORD
    return mixed ^ mixed >> 15
