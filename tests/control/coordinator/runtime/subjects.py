"""The state machines that the runtime's tests are run with: each as a table of numbered keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from appliance.channels.control_channel import Body, Envelope
from appliance.cluster import CONSUMER_OFFSETS, TRANSACTION_STATE
from appliance.control.coordinator.group_machines import GroupMachines
from appliance.control.coordinator.marker_writer import MarkerWriter
from appliance.control.coordinator.runtime.effects import Record
from appliance.control.coordinator.runtime.shard import State
from appliance.control.coordinator.runtime.state_machine import Service
from appliance.control.coordinator.transaction.transaction import Transaction
from appliance.control.coordinator.transaction.transaction_record import (
    read_transaction_record,
    tombstone,
    transaction_record,
)
from appliance.control.coordinator.transaction_machines import TransactionMachines
from appliance.partition_access.producer_ids import ProducerIdBlocks
from appliance.protocol.group_partition import group_partition
from appliance.protocol.records.batch import (
    CONTROL,
    H_ATTRIBUTES,
    H_PRODUCER_ID,
    HEADER,
    LOG_OVERHEAD,
    TRANSACTIONAL,
)
from appliance.protocol.records.control import decode_marker
from appliance.protocol.records.offset_records import (
    CommittedOffset,
    encode_value,
    offset_key,
    parse_key,
    parse_value,
)
from appliance.protocol.records.record import decode_records
from tests.control.coordinator.runtime import toy
from tests.control.coordinator.runtime.host import Host

PARTITIONS = 2


class Subject(Protocol):
    """One kind of state machine."""

    topic: str

    def service(self, host: Host) -> Service: ...

    def partition(self, key: int) -> int: ...

    def record(self, key: int, value: int | None) -> Record: ...

    def parse(self, record: Record) -> tuple[int, int | None]: ...

    def state(self, host: Host, partition: int) -> dict[int, int]: ...


class Toy:
    topic = toy.TOPIC

    def service(self, host: Host) -> Service:
        return toy.ToyService()

    def partition(self, key: int) -> int:
        return key % PARTITIONS

    def record(self, key: int, value: int | None) -> Record:
        return Record(b"%d" % key, None if value is None else b"%d" % value)

    def parse(self, record: Record) -> tuple[int, int | None]:
        return int(record.key), None if record.value is None else int(record.value)

    def state(self, host: Host, partition: int) -> dict[int, int]:
        assert isinstance(host.service, toy.ToyService)
        values = host.service.by_partition[partition].values
        return {int(key): int(value) for key, value in values.items()}


class Offsets:
    """Key n is the offset of group n in one partition of a topic."""

    topic = CONSUMER_OFFSETS

    def service(self, host: Host) -> Service:
        return GroupMachines(host.settings, host.image, host.clock)

    def partition(self, key: int) -> int:
        return group_partition(f"group-{key}", PARTITIONS)

    def record(self, key: int, value: int | None) -> Record:
        encoded = None if value is None else encode_value(CommittedOffset(value, 0, "", 1))
        return Record(offset_key(f"group-{key}", "t", 0), encoded)

    def parse(self, record: Record) -> tuple[int, int | None]:
        key = int(parse_key(record.key).group.removeprefix("group-"))
        return key, None if record.value is None else parse_value(record.value).offset

    def state(self, host: Host, partition: int) -> dict[int, int]:
        assert isinstance(host.service, GroupMachines)
        book = host.service.by_partition[partition].book
        found = {}
        for group in book.groups():
            value = book.value(group, "t", 0)
            if value is not None:
                found[int(group.removeprefix("group-"))] = parse_value(value).offset
        return found


class Transactions:
    """Key n is the producer id of transactional id n."""

    topic = TRANSACTION_STATE

    def service(self, host: Host) -> Service:
        return transaction_service(host)

    def partition(self, key: int) -> int:
        return group_partition(f"id-{key}", PARTITIONS)

    def record(self, key: int, value: int | None) -> Record:
        if value is None:
            return tombstone(f"id-{key}")
        return transaction_record(f"id-{key}", Transaction(value, 0, 1_000), server_version=2)

    def parse(self, record: Record) -> tuple[int, int | None]:
        read = read_transaction_record(record.key, record.value)
        assert read is not None
        return int(read[0].removeprefix("id-")), None if read[1] is None else read[1].producer_id

    def state(self, host: Host, partition: int) -> dict[int, int]:
        assert isinstance(host.service, TransactionMachines)
        found = {}
        for name in host.service.transactions.ids(partition):
            transaction = host.service.transactions.get(name)
            assert transaction is not None
            found[int(name.removeprefix("id-"))] = transaction.producer_id
        return found


def transaction_service(host: Host) -> TransactionMachines:
    """The service over the host's rings, with a controller that hands out no ids."""
    markers = MarkerWriter(
        host.access,
        host.image,
        write_offsets_marker=lambda *_: None,
        later=host.runtime.later,
        clock=host.clock,
    )
    return TransactionMachines(
        host.settings, host.clock, ProducerIdBlocks(SilentController, host.clock), markers
    )


class SilentController:
    """Reads what it is asked, and does not answer."""

    def ask(self, body: Body) -> int | None:
        return 1

    def receive(self) -> list[Envelope]:
        return []


SUBJECTS: dict[str, Subject] = {"toy": Toy(), "offsets": Offsets(), "transactions": Transactions()}


def batches(subject: Subject, host: Host, partition: int) -> Iterator[bytes]:
    """The batches of the partition's log, read from its files."""
    root: Path = host.settings.log_directories(0)[0] / f"{subject.topic}-{partition}"
    for path in sorted(root.glob("*.log")):
        with path.open("rb") as file:
            while (head := file.read(LOG_OVERHEAD)) and (length := int.from_bytes(head[8:])):
                yield head + file.read(length)


def written(subject: Subject, host: Host, partition: int) -> Iterator[tuple[int, int | None]]:
    """What the partition's log says, record by record, whatever became of its transactions."""
    for batch in batches(subject, host, partition):
        if not HEADER.unpack_from(batch)[H_ATTRIBUTES] & CONTROL:
            for record in decode_records(batch):
                yield subject.parse(Record(record.key or b"", record.value))


def ends(subject: Subject, host: Host, partition: int) -> Iterator[tuple[int, bool]]:
    """The markers of the partition's log: producer id, and whether the transaction was committed."""
    for batch in batches(subject, host, partition):
        header = HEADER.unpack_from(batch)
        if header[H_ATTRIBUTES] & CONTROL:
            marker = decode_marker(batch)
            assert marker is not None
            yield header[H_PRODUCER_ID], marker.committed


def logged(subject: Subject, host: Host, partition: int) -> dict[int, int]:
    """The state that a replay of the whole log leaves: of each key the last record that is decided and not aborted."""
    decided: dict[int, tuple[int, int | None]] = {}
    pending: dict[int, list[tuple[int, tuple[int, int | None]]]] = {}
    number = 0

    def take(at: int, key: int, value: int | None) -> None:
        if at >= decided.get(key, (0, None))[0]:
            decided[key] = at, value

    for batch in batches(subject, host, partition):
        header = HEADER.unpack_from(batch)
        producer_id = header[H_PRODUCER_ID]
        if header[H_ATTRIBUTES] & CONTROL:
            marker = decode_marker(batch)
            assert marker is not None
            for at, (key, value) in pending.pop(producer_id, ()):
                if marker.committed:
                    take(at, key, value)
            continue
        for record in decode_records(batch):
            number += 1
            said = subject.parse(Record(record.key or b"", record.value))
            if header[H_ATTRIBUTES] & TRANSACTIONAL:
                pending.setdefault(producer_id, []).append((number, said))
            else:
                take(number, *said)
    return {key: value for key, (_, value) in decided.items() if value is not None}


def is_served(host: Host, partition: int) -> bool:
    shards = host.shards.shards
    return bool(shards) and shards[partition].state is State.ACTIVE
