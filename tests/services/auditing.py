"""An audit beside real logs and a real image: the test plays the workers, and says when they answer and who dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec

from appliance.channels.metadata_image import ImageReader
from appliance.clock import ManualClock
from appliance.cluster import (
    CONSUMER_OFFSETS,
    MESSAGE_AUDIT,
    MESSAGE_AUDIT_STATE,
    OBSERVATIONS,
    TRACE,
    TRACE_STATE,
    BrokerSlot,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from appliance.config import Settings
from appliance.config.sections.services import ServicesSettings
from appliance.log.producer_state import AppendOrigin
from appliance.message_audit.entry import COUNTS, Entry, decode
from appliance.message_audit.observation import Fetched, Observation, Produced, encode
from appliance.message_audit.report import Report
from appliance.message_trace.event import Event
from appliance.partition_access.access import PartitionAccess, Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.records.offset_records import CommittedOffset, encode_value, offset_key
from appliance.protocol.records.record import Record, encode_batch
from appliance.services.audit_reader import AuditReader
from appliance.services.audit_topics import AuditTopics
from appliance.services.errand import Errand
from appliance.services.rounds import ROUND_MS
from appliance.services.trace_reader import TraceReader
from appliance.services.trace_topics import TraceTopics
from tests.log.batches import read_all
from tests.services.delivering import Logs

TOPIC = "t"
TOPIC_ID = UUID(int=5)
PARTITIONS = 2
BUCKET_MS = 60_000


class AuditedLogs(Logs):
    """`Logs` with what the audit uses beside it."""

    def log_start(self, place: LogPlace) -> int:
        return self.log(place.topic, place.partition).log_start_offset

    def read(
        self,
        place: LogPlace,
        offset: int,
        done: Callable[[Read], None],
        *,
        bytes_max: int,
        is_committed: bool = False,
        headers_only: bool = False,
    ) -> bool:
        def only_headers(read: Read) -> None:
            if read.error:
                done(read._replace(log_start=self.log_start(place)))
                return
            headers = tuple(batch.header for chunk in read.chunks for batch in chunk.batches)
            done(read._replace(chunks=(), headers=headers) if headers_only else read)

        return super().read(place, offset, only_headers, bytes_max=bytes_max, is_committed=is_committed)


class _Image:
    def __init__(self, image: ClusterImage) -> None:
        self.image = image

    def current(self) -> ClusterImage:
        return self.image


def topic_image(name: str, number: int, partitions: int, configs: dict[str, str] | None = None) -> TopicImage:
    made = tuple(PartitionImage(each, each, 1, 0, 0, (0,), (0,)) for each in range(partitions))
    return TopicImage(name, UUID(int=number), made, configs or {})


class Auditing:
    """TOPIC is audited."""

    enabled = "audit.enable"
    reader: AuditReader | TraceReader

    def __init__(self, directory: Path, **configs: str) -> None:
        self.clock = ManualClock()
        self.logs = AuditedLogs(directory, self.clock)
        settings = Settings(data_dir=directory, services=ServicesSettings(processes=1))
        topics = {
            MESSAGE_AUDIT: topic_image(MESSAGE_AUDIT, 101, 1),
            MESSAGE_AUDIT_STATE: topic_image(MESSAGE_AUDIT_STATE, 102, 1),
            TRACE: topic_image(TRACE, 105, 1),
            TRACE_STATE: topic_image(TRACE_STATE, 106, 1),
            OBSERVATIONS: topic_image(OBSERVATIONS, 103, 1),
            CONSUMER_OFFSETS: topic_image(CONSUMER_OFFSETS, 104, 2),
            TOPIC: topic_image(
                TOPIC,
                5,
                PARTITIONS,
                {self.enabled: "true"} | {name.replace("_", "."): value for name, value in configs.items()},
            ),
        }
        self.image = _Image(ClusterImage(1, "c", 0, 1, (BrokerSlot(0, "h", 9092),), topics))
        self._settings = settings
        self.begin()

    def set_topics(self, **topics: TopicImage) -> None:
        """Publish an image with these topics, too."""
        image = self.image.image
        self.image.image = msgspec.structs.replace(image, topics=image.topics | topics)
        if self._topics.follow_image():
            self.errand.wake()

    def begin(self) -> None:
        """Begin with what the logs have, as after a death of the process."""
        logs = cast(PartitionAccess, self.logs)
        self.reader = self.new_reader(logs)
        self.errand = Errand(self.reader.work, logs, self.clock, name="audit")

    def new_reader(self, logs: PartitionAccess) -> AuditReader | TraceReader:
        """Return what this house is about."""
        topics = AuditTopics(self._settings, cast(ImageReader, self.image), self.clock)
        topics.follow_image()
        self._topics: AuditTopics | TraceTopics = topics
        return AuditReader(topics, logs, self.clock)

    def step(self) -> bool:
        """One turn, and the answers to it; return whether something was asked."""
        self.errand.turn()
        return self.logs.answer()

    def run(self) -> None:
        """Take turns until nothing happens at this time."""
        for _ in range(10_000):
            if not self.step() and self.errand.next_look_ms() != 1:
                return

    def rounds(self, count: int = 3) -> None:
        """Let so many rounds pass."""
        for _ in range(count):
            self.run()
            self.clock.advance(ROUND_MS)
        self.run()

    # What happens to the topic

    def produce(self, *records: Record, partition: int = 0, client: str = "c") -> None:
        """Append a batch, and observe that."""
        now_ms = self.clock.now_ms()
        log = self.logs.log(TOPIC, partition)
        first = log.log_end_offset
        log.append(memoryview(encode_batch(records)), leader_epoch=0)
        end = log.log_end_offset
        self.observe(
            Observation(
                produced=[Produced(TOPIC_ID, partition, first, end, now_ms, now_ms, client, "User:u")]
            )
        )

    def values(self, *values: bytes, **options: Any) -> None:
        """Append records of now."""
        now_ms = self.clock.now_ms()
        self.produce(*(Record(value, timestamp_ms=now_ms) for value in values), **options)

    def observe(self, observation: Observation) -> None:
        log = self.logs.log(OBSERVATIONS)
        log.append(memoryview(encode_batch([Record(encode(observation), timestamp_ms=0)])), leader_epoch=0)

    def fetch(
        self, first: int, end: int, *, partition: int = 0, client: str = "r", bytes_max: int = 0
    ) -> None:
        """Observe a fetch."""
        fetched = Fetched(TOPIC_ID, partition, first, end, self.clock.now_ms(), client, "User:r", bytes_max)
        self.observe(Observation(fetched=[fetched]))

    def commit(self, offset: int, *, group: str = "g", partition: int = 0, where: int = 0) -> None:
        """Commit an offset of a group."""
        value = encode_value(CommittedOffset(offset, -1, "", self.clock.now_ms()))
        record = Record(value, offset_key(group, TOPIC, partition), timestamp_ms=self.clock.now_ms())
        self.logs.log(CONSUMER_OFFSETS, where).append(
            memoryview(encode_batch([record])), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )

    # What the audit says

    def entries(self) -> list[Entry]:
        found = [decode(record.value) for record in read_all(self.logs.log(MESSAGE_AUDIT))]
        return [each for each in found if each is not None]

    def counted(self) -> Counter[tuple[str, int, str]]:
        """Return (kind, partition, client or group) → records."""
        counted: Counter[tuple[str, int, str]] = Counter()
        for each in self.entries():
            if each.kind in COUNTS:
                counted[each.kind, each.partition, each.client or each.group] += each.records
        return counted

    def findings(self) -> list[tuple[str, int, int]]:
        return [
            (each.kind, each.first, each.last)
            for each in self.entries()
            if each.kind not in COUNTS and each.kind != "positions"
        ]

    def report(self) -> dict[str, Any]:
        report = Report(TOPIC, from_ms=0, to_ms=1 << 60)
        for each in self.entries():
            report.add(each)
        return report.result()


class Tracing(Auditing):
    """TOPIC is traced."""

    enabled = "trace.enable"
    reader: TraceReader

    def __init__(self, directory: Path, **configs: str) -> None:
        self.exported: list[Event] = []
        super().__init__(directory, **configs)

    def new_reader(self, logs: PartitionAccess) -> TraceReader:
        """Return what this house is about."""
        topics = TraceTopics(self._settings, cast(ImageReader, self.image), self.clock)
        topics.follow_image()
        self._topics = topics
        return TraceReader(topics, logs, self.clock, export=self.exported.extend)
