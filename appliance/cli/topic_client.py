"""librdkafka as the views need it (`appliance/views/`): a reader and a writer of topics with the flags of a command."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from appliance.cli.client import admin_client, answer_of, asked, consumer, producer, refusal
from appliance.cli.cluster_view import IDS_VERSION, METADATA_VERSION, first_that_answers
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.group_lag import earliest, latest, offsets_at, since
from appliance.cli.record_format import UNREADABLE, header_list
from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.records.record import Record
from appliance.views.topic_access import PlacedRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message
    from confluent_kafka.admin import AdminClient

    from appliance.views.topic_access import Place

POLL_S: Final = 0.2
BATCH: Final = 1_000
SILENCE_POLLS: Final = 150
"""After so many polls without a word the broker counts as silent: 30 s."""
STALL_S: Final = 30.0
TOPICS_AT_ONCE: Final = 500
SPAN_OFFSETS: Final = 200
"""Offsets so near to each other are read together."""
_END_OF_PARTITION: Final = -191
_NO_GROUP: Final = 30
"""GROUP_AUTHORIZATION_FAILED. librdkafka asks for a coordinator although the command uses no group."""
_PICKER_OPTIONS: Final = {
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",  # a record that is gone leaves nothing to show
    "fetch.wait.max.ms": 10,
    # A batch of the internal topics fits. Only the first partition of an answer gets a larger one.
    "fetch.message.max.bytes": 2 << 20,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 1,
}
_WRITER_OPTIONS: Final = {"enable.idempotence": True, "linger.ms": 5, "message.max.bytes": 8 << 20}


class ClientReader:
    """Reads topics of the instance at `bootstrap`. Close it.

    Raises:
        BrokerError: nobody answers. Its methods raise it as well, if the broker refuses.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin: AdminClient = admin_client(bootstrap)
        self._consumer: Consumer | None = None
        self._picker: Consumer | None = None
        self._topics: dict[str, int] | None = None

    def close(self) -> None:
        """End the connections."""
        for client in (self._consumer, self._picker):
            if client is not None:
                client.close()

    def topics(self) -> Mapping[str, int]:
        """Return name → number of partitions."""
        if self._topics is None:
            found = asked(lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
            self._topics = {name: len(each.partitions) for name, each in found.items() if each.error is None}
        return self._topics

    def topic_ids(self) -> Mapping[str, UUID]:
        """Return name → id."""
        found = request(
            first_that_answers(self._bootstrap),
            ApiKey.METADATA,
            METADATA_VERSION,
            MetadataRequest(None, allow_auto_topic_creation=False),
            oldest=IDS_VERSION,
        )
        return {each.name: each.topic_id for each in found.topics if each.name}

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the log start of each partition."""
        return offsets_at(self._admin, places, earliest())

    def ends(self, places: Iterable[Place], *, read_committed: bool) -> dict[Place, int]:
        """Return the high watermark, or the last stable offset, of each partition."""
        return offsets_at(self._admin, places, latest(), read_committed=read_committed)

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        """Return the offset of the first record at or after a time."""
        found = offsets_at(self._admin, [place], since(time_ms)).get(place, -1)
        return found if found >= 0 else None

    def records(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Iterator[PlacedRecord]:
        """Yield the committed records of each partition from its start to its end."""
        from confluent_kafka import TopicPartition

        left = {place for place, end in ends.items() if starts.get(place, end) < end}
        if not left:
            return
        if self._consumer is None:
            self._consumer = consumer(
                self._bootstrap,
                {
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",  # the log start can move behind what was asked for
                    "fetch.wait.max.ms": 10,  # the next partition waits for the fetch of the one before
                },
            )
        client = self._consumer
        client.assign([TopicPartition(*place, starts[place]) for place in left])
        try:
            silent = 0
            while left:
                messages = asked(lambda: client.consume(BATCH, timeout=POLL_S))
                silent = 0 if messages else silent + 1
                if silent > SILENCE_POLLS:
                    raise BrokerError(f"{min(left)[0]} cannot be read: no record arrived for a long time")
                for message in messages:
                    if _is_before_end(message, ends, left):
                        placed = _placed(message)
                        if placed.offset >= starts[placed.place]:
                            yield placed
        finally:
            client.unassign()

    def records_at(self, offsets: Mapping[Place, Sequence[int]]) -> Iterator[PlacedRecord]:
        """Yield the committed records at these ascending offsets; those that are not there are left out."""
        from confluent_kafka import TopicPartition

        left = {place: list(_spans(some)) for place, some in offsets.items() if some}
        if not left:
            return
        if self._picker is None:
            self._picker = consumer(self._bootstrap, _PICKER_OPTIONS)
        client = self._picker
        try:
            while left:
                spans = {place: some.pop(0) for place, some in left.items()}
                client.assign([TopicPartition(*place, span[0]) for place, span in spans.items()])
                yield from self._pick(client, spans)
                left = {place: some for place, some in left.items() if some}
        finally:
            client.unassign()

    def _pick(self, client: Consumer, spans: dict[Place, list[int]]) -> Iterator[PlacedRecord]:
        """Yield the records at the offsets of one span of each partition."""
        ends = {place: span[-1] + 1 for place, span in spans.items()}
        wanted = {place: frozenset(span) for place, span in spans.items()}
        firsts = {place: span[0] for place, span in spans.items()}
        left = set(ends)
        until_s = time.monotonic() + STALL_S
        while left:
            message = asked(lambda: client.poll(POLL_S))
            if message is None:
                if time.monotonic() > until_s:
                    raise BrokerError(f"{min(left)[0]} cannot be read: no record arrived for a long time")
                continue
            place = message.topic() or "", message.partition() or 0
            if message.error() is None and (message.offset() or 0) < firsts.get(place, 0):
                continue  # of the span before
            if _is_before_end(message, ends, left) and message.offset() in wanted[place]:
                yield _placed(message)

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics. One that does not exist is left out."""
        return topic_configs(self._admin, topics)


def topic_configs(client: AdminClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics. A topic that does not exist, or may not be described, is left out."""
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    names = list(topics)
    found: dict[str, dict[str, str]] = {}
    for at in range(0, len(names), TOPICS_AT_ONCE):
        resources = [
            ConfigResource(ConfigResource.Type.TOPIC, name) for name in names[at : at + TOPICS_AT_ONCE]
        ]
        pending = asked(lambda resources=resources: client.describe_configs(resources))  # type: ignore[misc]
        for resource, future in pending.items():
            try:
                entries = answer_of(future)
            except BrokerError as fault:
                if "UNKNOWN_TOPIC_OR_PARTITION" not in str(fault):
                    raise
                continue
            found[resource.name] = {name: entry.value or "" for name, entry in entries.items()}
    return found


def _placed(message: Message) -> PlacedRecord:
    record = Record(message.value(), message.key(), tuple(header_list(message)), message.timestamp()[1])
    return PlacedRecord(message.topic() or "", message.partition() or 0, message.offset() or 0, record)


def _is_before_end(message: Message, ends: Mapping[Place, int], left: set[Place]) -> bool:
    """Return whether the record is to be seen; takes its partition off `left` if it was the last one."""
    place = message.topic() or "", message.partition() or 0
    error = message.error()
    if error is not None:
        if error.code() == _END_OF_PARTITION:
            left.discard(place)
        elif error.code() == _NO_GROUP:
            return False
        elif error.fatal() or not error.retriable():
            raise BrokerError(f"{place[0]}-{place[1]} cannot be read: {refusal(error)}")
        return False
    offset = message.offset() or 0
    # What was fetched for the assignment before may still come.
    if place not in left:
        return False
    if offset + 1 >= ends[place]:
        left.discard(place)
    return offset < ends[place]


class ClientWriter:
    """A producer that raises what was refused.

    Raises:
        BrokerError: nobody answers.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = producer(bootstrap, _WRITER_OPTIONS)
        self._error: KafkaError | None = None

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and self._error is None:
            self._error = error

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        *,
        partition: int = -1,
    ) -> None:
        """Send a record; `finish` says whether it is there.

        Raises:
            BrokerError: it was read with headers that cannot be written as they were.
        """
        written = list[tuple[str, str | bytes | None]](headers)
        if (UNREADABLE, None) in written:
            raise BrokerError(
                f"a record cannot be copied to {topic}: the name of one of its headers is no UTF-8, which this command "
                "cannot write"
            )
        while True:
            try:
                self._client.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=self._delivered,
                    headers=written,
                )
            except BufferError:
                self._client.poll(POLL_S)
            else:
                self._client.poll(0)
                return

    def finish(self) -> None:
        """Wait until all records that were sent are acknowledged.

        Raises:
            BrokerError: one was refused, or no answer came.
        """
        left = self._client.flush(STALL_S)
        error, self._error = self._error, None
        if error is not None:
            raise BrokerError(refusal(error))
        if left:
            raise BrokerError(f"{left} records were not acknowledged within {STALL_S:.0f} s")

    def delete_before(self, offsets: Mapping[Place, int]) -> None:
        """Delete what lies before these offsets."""
        from confluent_kafka import TopicPartition

        client = admin_client(self._bootstrap)
        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        pending = asked(lambda: client.delete_records(places, operation_timeout=REQUEST_TIMEOUT_S))
        for future in pending.values():
            answer_of(future)


def _spans(offsets: Sequence[int]) -> Iterator[list[int]]:
    """Divide ascending offsets where they are far from each other."""
    span: list[int] = []
    for offset in offsets:
        if span and offset - span[-1] > SPAN_OFFSETS:
            yield span
            span = []
        span.append(offset)
    if span:
        yield span
