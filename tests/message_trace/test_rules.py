from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from appliance.message_trace.event import ORDER, Event, Step, decode, encode, in_order
from appliance.message_trace.finding import (
    Found,
    Origin,
    context_of,
    derived_trace,
    is_sampled,
    origin_of,
    parse_traceparent,
    traced,
)
from appliance.message_trace.spans import request_of, span_id
from appliance.protocol.records.batch import HEADER
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01".encode()


def found_in(*records: Record, sample: int = 0, codec: Codec = Codec.NONE) -> list[Found]:
    batch = encode_batch(records, base_offset=40, codec=codec)
    return traced_in(batch, sample=sample)


def traced_in(batch: bytes, *, topic: str = "t", partition: int = 3, sample: int = 0) -> list[Found]:
    """Find the traced records of a batch that lies between others."""
    around = encode_batch([with_parent(VALID, b"another")])
    data = around + batch + around
    header = HEADER.unpack_from(data, len(around))
    return list(traced(data, len(around), header, topic=topic, partition=partition, sample=sample))


def with_parent(value: bytes, key: bytes | None = None) -> Record:
    return Record(b"v", key, (("other", b"x"), ("traceparent", value)), timestamp_ms=7)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"00",
        b"ff" + VALID[2:],
        VALID.upper(),
        VALID + b"-more",
        b"00-" + b"0" * 32 + b"-" + PARENT.encode() + b"-01",
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        VALID[:-1],
        b"x" * 1_000_000,
        b"\xff" * 55,
    ],
)
def test_a_traceparent_that_is_not_valid_begins_no_trace(value: bytes | None) -> None:
    assert parse_traceparent(value) is None


def test_a_traceparent_is_read_as_the_w3c_says() -> None:
    assert parse_traceparent(VALID) == (TRACE, PARENT, True)
    assert parse_traceparent(VALID[:-1] + b"0") == (TRACE, PARENT, False)
    assert parse_traceparent(b"01" + VALID[2:] + b"-later") == (TRACE, PARENT, True), "a later version"


@pytest.mark.parametrize("codec", list(Codec))
def test_records_with_a_sampled_context_are_found_whatever_the_codec(codec: Codec) -> None:
    plain = Record(b"traceparent is only in the value", timestamp_ms=7)
    unsampled = with_parent(VALID[:-1] + b"0")
    found = found_in(
        plain, with_parent(VALID), unsampled, with_parent(b"bad"), with_parent(VALID), codec=codec
    )
    assert [(each.offset, each.trace, each.parent, each.timestamp_ms) for each in found] == [
        (41, TRACE, PARENT, 7),
        (44, TRACE, PARENT, 7),
    ]


@given(st.integers(1, 50), st.binary(max_size=20))
def test_a_key_is_traced_always_or_never(sample: int, key: bytes) -> None:
    chosen = is_sampled(key, 40, sample)
    found = found_in(Record(b"v", key, timestamp_ms=1), Record(None, key, timestamp_ms=1), sample=sample)
    assert [each.offset for each in found] == ([40, 41] if chosen else [])


@given(
    st.lists(
        st.builds(
            Record,
            st.none() | st.binary(max_size=300) | st.just(b"traceparent" + VALID),
            st.none() | st.binary(max_size=80),
            st.lists(
                st.sampled_from(
                    (
                        ("other", b"x" * 200),
                        ("", None),
                        ("traceparent", VALID),
                        ("traceparent", VALID[:-2] + b"0b"),
                        ("traceparent", VALID[:-2] + b"0a"),
                        ("traceparent", VALID[:-2] + b"00"),
                        ("traceparent", b"01" + VALID[2:] + b"-later"),
                        ("traceparent", VALID.upper()),
                        ("traceparent", None),
                        ("retry.topic", b"t"),
                        ("retry.partition", b"0"),
                        ("retry.offset", b"42"),
                    )
                ),
                max_size=5,
            ).map(tuple),
            st.integers(0, 1 << 40),
        ),
        min_size=1,
        max_size=80,
    ),
    st.sampled_from((0, 1, 2, 3)),
)
def test_the_records_that_are_found_are_those_that_decoding_all_of_them_finds(
    records: list[Record], sample: int
) -> None:
    wanted = []
    for offset, record in enumerate(records, 40):
        context, origin = context_of(record.headers), origin_of(record.headers)
        first = offset if origin is None else origin.offset
        if (context is not None and context.is_sampled) or is_sampled(record.key, first, sample):
            wanted.append(offset)
    assert [each.offset for each in found_in(*records, sample=sample)] == wanted


def test_one_in_n_records_without_a_key_is_chosen_and_again_when_it_is_retried() -> None:
    found = found_in(*[Record(b"v", timestamp_ms=1)] * 25, sample=10)
    assert [each.offset for each in found] == [40, 50, 60]
    headers = (("retry.topic", b"t"), ("retry.partition", b"3"), ("retry.offset", b"50"))
    batch = encode_batch([Record(b"v", None, headers, timestamp_ms=1), Record(b"v")], base_offset=9)
    (again,) = traced_in(batch, topic="elsewhere", sample=50)
    assert (again.offset, again.trace) == (9, derived_trace("t", 3, 50))


def test_one_in_n_keys_is_chosen() -> None:
    chosen = sum(is_sampled(b"key-%d" % number, 0, 100) for number in range(100_000))
    assert 800 < chosen < 1_200


def test_a_retried_and_a_dead_record_have_the_trace_of_the_first_one() -> None:
    key = next(b"%d" % number for number in range(1_000) if is_sampled(b"%d" % number, 0, 2))
    headers = {
        "retry": (
            ("retry.topic", b"t"),
            ("retry.partition", b"3"),
            ("retry.offset", b"40"),
            ("retry.attempts", b"2"),
        ),
        "dead": (
            ("__dlq.errors.topic", b"t"),
            ("__dlq.errors.partition", b"3"),
            ("__dlq.errors.offset", b"40"),
            ("__dlq.errors.group", b"g"),
        ),
    }
    (first,) = found_in(Record(b"v", key, timestamp_ms=1), sample=2)
    assert first.origin is None
    for step, detail in (("retry", "attempts=2"), ("dead", "group=g")):
        batch = encode_batch([Record(b"v", key, headers[step], timestamp_ms=1)], base_offset=9)
        (again,) = traced_in(batch, topic="elsewhere", partition=0, sample=2)
        assert again.trace == first.trace == derived_trace("t", 3, 40)
        assert again.origin == Origin("t", 3, 40, "retried" if step == "retry" else "dead", detail)
    for odd in (b"-1", b"x", None, b"9" * 40):
        assert origin_of((("retry.topic", b"t"), ("retry.partition", odd), ("retry.offset", b"1"))) is None


@given(st.binary(min_size=1, max_size=4), st.integers(0, 200))
def test_a_damaged_batch_begins_no_trace_and_raises_nothing(noise: bytes, at: int) -> None:
    batch = bytearray(encode_batch([with_parent(VALID, b"k")] * 2))
    batch[at % len(batch) : at % len(batch) + len(noise)] = noise
    for sample in (0, 1):
        traced_in(bytes(batch), sample=sample)


def test_events_survive_the_wire_and_foreign_ones_are_left_out() -> None:
    event = Event(trace=TRACE, step="fetched", topic="t", partition=1, offset=2, at_ms=3, client="c\n")
    assert decode(encode(event)) == event
    for foreign in (None, b"", b"{", b"[]", b"{}", b'{"v":1}', b'{"v":1,"trace":"x","step":"odd"}'):
        assert decode(foreign) is None


def test_a_timeline_goes_by_time_and_then_by_step() -> None:
    def event(step: str, at_ms: int, offset: int = 1) -> Event:
        return Event(trace=TRACE, step=step, topic="t", partition=0, offset=offset, at_ms=at_ms)

    shuffled = [event("consumed", 9), event("replicated", 5), event("appended", -1), event("produced", 5)]
    assert [each.step for each in in_order(shuffled)] == ["produced", "appended", "replicated", "consumed"]
    assert list(ORDER) == [step.value for step in Step]


def parsed(request: dict[str, Any]) -> ExportTraceServiceRequest:
    """Parse OTLP's JSON with OpenTelemetry's own messages. They want ids in Base64, where OTLP has hex digits."""
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    found: ExportTraceServiceRequest = json_format.ParseDict(request, ExportTraceServiceRequest())
    return found


def test_spans_are_what_opentelemetry_understands() -> None:
    events = [
        Event(
            trace=TRACE,
            step=step,
            topic="t",
            partition=1,
            offset=1 << 40,
            at_ms=2_000,
            since_ms=1_500,
            client="c",
            principal="User:x",
            group="g" if step == "consumed" else "",
            parent=PARENT,
        )
        for step in ORDER
    ]
    request = parsed(request_of(events, version="1"))
    spans = request.resource_spans[0].scope_spans[0].spans
    assert {each.name for each in spans} >= {"publish t", "receive t", "settle t", "process t", "dead t"}
    assert len(spans) == len(events) - 1 == len({each.span_id for each in spans})
    publish = next(each for each in spans if each.name == "publish t")
    assert publish.trace_id.hex() == TRACE
    assert publish.parent_span_id.hex() == PARENT
    assert (publish.start_time_unix_nano, publish.end_time_unix_nano) == (1_500_000_000, 2_000_000_000)
    assert publish.kind == Span.SPAN_KIND_PRODUCER
    attributes = {each.key: each.value for each in publish.attributes}
    assert attributes["messaging.kafka.offset"].int_value == 1 << 40
    assert attributes["messaging.destination.partition.id"].string_value == "1"
    assert attributes["messaging.client.id"].string_value == "c"


def test_a_step_that_is_sent_twice_is_one_span_and_times_are_never_odd() -> None:
    event = Event(trace=TRACE, step="appended", topic="t", partition=0, offset=1, at_ms=-1, since_ms=-1)
    assert span_id(event) == span_id(decode(encode(event)) or event)
    skewed = Event(trace=TRACE, step="appended", topic="t", partition=0, offset=1, at_ms=5, since_ms=9)
    for each in parsed(request_of([event, skewed], version="1")).resource_spans[0].scope_spans[0].spans:
        assert each.start_time_unix_nano <= each.end_time_unix_nano
