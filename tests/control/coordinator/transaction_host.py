"""A transaction coordinator and the owner of its log and of a data topic, over real rings and real logs.

It also owns the partition for delayed records of transactions.

Requests go in as network processes hand them over, decoded; `answers` has what each was answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from appliance.channels.control_channel import AssignedPartition, Body, Envelope, ProducerIdBlock
from appliance.channels.roles import Role, RoleKind
from appliance.cluster import (
    DELAYED_TRANSACTIONS,
    TRANSACTION_STATE,
    ClusterImage,
    PartitionImage,
    TopicImage,
    TopicPartition,
)
from appliance.control.coordinator.marker_writer import MarkerWriter
from appliance.control.coordinator.request_queue import Reply
from appliance.control.coordinator.runtime.state_machine import Service
from appliance.control.coordinator.transaction_machines import TransactionMachines
from appliance.control.coordinator.transaction_requests import TransactionRequests
from appliance.ioproc.partition import Partition
from appliance.log.config import LogSettings
from appliance.log.file_names import partition_directory_name
from appliance.log.partition_log import PartitionLog
from appliance.partition_access.places import LogPlace
from appliance.partition_access.producer_ids import ProducerIdBlocks
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.headers import RequestHeader
from appliance.protocol.records.batch import LOG_OVERHEAD
from tests.control.coordinator.runtime.host import Host

DATA = "data"
DATA_ID = UUID(int=78)
DATA_PARTITIONS = 2
DELAYED_ID = UUID(int=79)
LOG_PARTITIONS = 1
TICK_MS = 5


class ControllerOfIds:
    """Hands out blocks, one after the other also over the lives of coordinators."""

    def __init__(self) -> None:
        self._blocks = itertools.count(1)
        self._envelopes: list[Envelope] = []

    def ask(self, body: Body) -> int | None:
        self._envelopes.append(Envelope(1, ProducerIdBlock(1000 * next(self._blocks), 1000)))
        return 1

    def receive(self) -> list[Envelope]:
        envelopes, self._envelopes = self._envelopes, []
        return envelopes


class Answered:
    """Takes the answers to requests, by request id."""

    def __init__(self) -> None:
        self.answers: dict[int, Any] = {}

    def respond(self, reply: Any, response: Any) -> None:
        assert reply.request_id not in self.answers, "answered twice"
        self.answers[reply.request_id] = response

    def respond_long(self, reply: Any, response: Any) -> None:
        self.respond(reply, response)

    def answer_in_pieces(
        self, replies: list[Any], elements: Iterator[Any], make: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        for reply in replies:
            self.respond(reply, make(tuple(elements)))


class TransactionHost(Host):
    """See above. The data topic's rows follow those of `__transaction_state`."""

    def __init__(self, path: Path) -> None:
        self.controller = ControllerOfIds()
        self.numbers = itertools.count(1)
        self.has_data = True
        self.has_log = True
        super().__init__(path, TRANSACTION_STATE, self._made, partitions=LOG_PARTITIONS)

    def _made(self, _host: Host) -> Service:
        self.answered = Answered()
        self.ids = ProducerIdBlocks(lambda: self.controller, self.clock)
        self.markers = MarkerWriter(
            self.access,
            self.image,
            write_offsets_marker=lambda *_: None,
            later=self.runtime.later,
            clock=self.clock,
        )
        self.machines = TransactionMachines(self.settings, self.clock, self.ids, self.markers)
        self.requests = TransactionRequests(
            self.machines,
            self.markers,
            self.image,
            offsets_partitions=self.settings.offsets.topic_num_partitions,
            answers=self.answered,
            later=self.runtime.later,
            clock=self.clock,
        )
        return self.machines

    # Requests

    def ask(self, api: ApiKey, version: int, request: Any) -> int:
        """Hand a request over; the answer will stand under the number that is returned."""
        number = next(self.numbers)
        header = RequestHeader(int(api), version, number, "c", 0)
        reply = Reply(
            Role(RoleKind.NETPROC, 0),
            1,
            request_id=number,
            header=header,
            length_bytes=100,
            slot=0,
            host="/127.0.0.1",
        )
        self.requests.servants[int(api)](request, reply)
        return number

    def answer_to(self, api: ApiKey, version: int, request: Any) -> Any:
        """What the request is answered when everybody works on."""
        number = self.ask(api, version, request)
        for _ in range(40):
            if number in self.answered.answers:
                return self.answered.answers.pop(number)
            self.round()
        raise AssertionError(f"no answer to {request}")

    # Steps

    def turn(self) -> None:
        self.ids.hear()
        self.requests.turn()
        super().turn()
        self.markers.flush()
        self.access.publish()

    def worker_works(self) -> None:
        self.fetch_requests()
        while self.asked:
            self.append_next()
        self.answer()

    def round(self) -> None:
        """Everybody does what there is to do, and some time passes."""
        self.clock.advance(TICK_MS)
        self.turn()
        if not self.is_led:
            self.lead_again()
        self.worker_works()
        self.turn()

    def settle(self) -> None:
        super().settle()
        for _ in range(100):
            self.round()
            statistics = self.runtime.statistics()
            is_idle = not statistics["waiting"] and not statistics["in_flight"]
            if is_idle and not any(self.markers.statistics().values()):
                return
        raise AssertionError(f"markers are owed: {self.markers.statistics()}")

    # The owner, the image

    def lead(self) -> None:
        super().lead()
        root = self.settings.log_directories(0)[0]
        data = [(DATA, DATA_ID, number) for number in range(DATA_PARTITIONS)]
        for row, (topic, topic_id, number) in enumerate(
            [*data, (DELAYED_TRANSACTIONS, DELAYED_ID, 0)], LOG_PARTITIONS
        ):
            log = PartitionLog.open(
                root / partition_directory_name(TopicPartition(topic, number)),
                settings=LogSettings(),
                clock=self.clock,
            )
            assigned = AssignedPartition(topic, topic_id, number, row, 1, 0, self.epoch, (0,), (0,), {})
            partition = Partition(
                assigned, log, table=self.worker.partitions, slot=0, min_insync_replicas=1, clock=self.clock
            )
            partition.serve()
            self.led.append(partition)

    def publish_image(self) -> None:
        topics: dict[str, TopicImage] = {}
        if self.has_log:
            topics[self.topic] = TopicImage(
                self.topic,
                self.topic_id,
                tuple(PartitionImage(n, n, 1, 0, self.epoch, (0,), (0,)) for n in range(LOG_PARTITIONS)),
                internal=True,
            )
        if self.has_data:
            topics[DATA] = TopicImage(
                DATA,
                DATA_ID,
                tuple(
                    PartitionImage(n, LOG_PARTITIONS + n, 1, 0, self.epoch, (0,), (0,))
                    for n in range(DATA_PARTITIONS)
                ),
            )
            topics[DELAYED_TRANSACTIONS] = TopicImage(
                DELAYED_TRANSACTIONS,
                DELAYED_ID,
                (PartitionImage(0, LOG_PARTITIONS + DATA_PARTITIONS, 1, 0, self.epoch, (0,), (0,)),),
                internal=True,
            )
        version = self._publisher.version + 1
        self._publisher.publish(ClusterImage(version, "c", 0, 1, (), topics))

    # The data

    def data_place(self, partition: int) -> LogPlace:
        self.runtime.follow_image()
        place = self.image.log_place(TopicPartition(DATA, partition))
        assert place is not None
        return place

    def data_log(self, partition: int) -> PartitionLog:
        return self.led[LOG_PARTITIONS + partition].log

    def batches(self, partition: int) -> list[bytes]:
        """The batches of a partition of the data topic, read from its files."""
        root: Path = self.settings.log_directories(0)[0] / f"{DATA}-{partition}"
        found = []
        for path in sorted(root.glob("*.log")):
            with path.open("rb") as file:
                while (head := file.read(LOG_OVERHEAD)) and (length := int.from_bytes(head[8:])):
                    found.append(head + file.read(length))
        return found
