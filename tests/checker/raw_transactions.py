"""A transactional producer over bare sockets, of either protocol, because only Java speaks version 2 (KIP-890).

It is one thread's, sends one request at a time, and can do what no library does: send an old request again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, Final, NoReturn

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from appliance.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.find_coordinator import GROUP, TRANSACTION, FindCoordinatorRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartition,
    TxnOffsetCommitRequest,
    TxnOffsetCommitTopic,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.record import Record, encode_batch
from tests.checker.transaction_history import Place
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import ask, flexible_produce_body

ANSWER_S: Final = 10.0
PATIENCE_S: Final = 60.0
_AGAIN_S: Final = 0.02
_LOST: Final = (OSError, ConnectionEnded)
_FATAL: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)


class ProducerFailed(Exception):
    """The transaction cannot go on."""


class Fenced(ProducerFailed):
    """The producer was refused, and will be. Its open transaction is not committed unless that was asked for before."""


class MustAbort(ProducerFailed):
    """The open transaction can only be aborted."""


class InDoubt(ProducerFailed):
    """A commit was asked for, and nobody knows whether it was done."""


class RawProducer:
    """Speaks with a cluster whose broker n listens on `ports[n - first_node]`.

    Args:
        protocol: 1 adds partitions before it writes; 2 lets the broker add them, and each end raises the epoch.
        timeout_ms: `transaction.timeout.ms`.
    """

    def __init__(
        self,
        ports: Sequence[int],
        transactional_id: str,
        *,
        protocol: int = 2,
        timeout_ms: int = 30_000,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.producer_id = -1
        self.epoch = -1
        self._ports = tuple(ports)
        self._timeout_ms = timeout_ms
        self._patience_s = patience_s
        self._connections: dict[int, WireSocket] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._leaders: dict[Place, int] = {}
        self._sequences: dict[Place, int] = {}
        self._added: set[Place | str] = set()

    def start(self) -> None:
        """InitProducerId: fences the producer before, and ends what it left open."""
        request = InitProducerIdRequest(self.transactional_id, self._timeout_ms)
        answer, _ = self._coordinate(TRANSACTION, ApiKey.INIT_PRODUCER_ID, request, 5)
        if answer.error_code:
            self._refused(answer.error_code)
        self._identify(answer.producer_id, answer.producer_epoch)

    def begin(self) -> None:
        """Sends nothing: the first write begins a transaction."""
        self._added.clear()

    def add(self, place: Place) -> None:
        """AddPartitionsToTxn; errors as of `write`, which does it by itself under version 1."""
        request = AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=(AddPartitionsToTxnTopic(place.topic, (place.partition,)),),
        )
        answer, _ = self._coordinate(TRANSACTION, ApiKey.ADD_PARTITIONS_TO_TXN, request, 3)
        error = _worst(answer)
        if error:
            self._refused(error)
        self._added.add(place)

    def write(self, place: Place, values: Sequence[bytes]) -> int:
        """The offset of the first of them.

        Raises:
            Fenced, MustAbort: they may be in the log, in a transaction that will not be committed.
        """
        if self.protocol == 1 and place not in self._added:
            self.add(place)
        self._added.add(place)
        sequence = self._sequences.get(place, 0)
        offset = self._place(place, self._produce_body(place, values, sequence))
        self._sequences[place] = sequence + len(values)
        return offset

    def late_write(self, place: Place, values: Sequence[bytes]) -> Callable[[], int]:
        """A Produce of the transaction that is open now, to be sent when it has ended; returns the error code."""
        body = self._produce_body(place, values, self._sequences.get(place, 0))

        def send() -> int:
            error, _ = self._produce(place, body)
            return error

        return send

    def await_marker(self, place: Place, offset: int) -> None:
        """Returns when the transaction that wrote there has its marker, which EndTxn does not wait for.

        Raises:
            MustAbort: it has none in time.
        """
        wanted = ListOffsetsTopic(place.topic, (ListOffsetsPartition(place.partition, LATEST_TIMESTAMP),))
        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline:
            node = self._leader(place)
            if node is not None:
                try:
                    request = ListOffsetsRequest(-1, (wanted,), isolation_level=1)
                    answer = ask(self._connection(node), ApiKey.LIST_OFFSETS, request, version=6)
                except _LOST:
                    self._forget(node)
                else:
                    found = answer.topics[0].partitions[0]
                    if not found.error_code and found.offset > offset:
                        return
                    if found.error_code:
                        self._leaders.clear()
            time.sleep(_AGAIN_S)
        raise MustAbort(f"no marker behind offset {offset} of {place} within {self._patience_s:.0f} s")

    def send_offsets(self, group: str, offsets: dict[Place, int]) -> None:
        """Of a group without members. Errors as of `write`."""
        if self.protocol == 1 and group not in self._added:
            request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
            answer, _ = self._coordinate(TRANSACTION, ApiKey.ADD_OFFSETS_TO_TXN, request, 3)
            if answer.error_code:
                self._refused(answer.error_code)
        self._added.add(group)
        names = {place.topic for place in offsets}
        topics = tuple(
            TxnOffsetCommitTopic(
                name,
                tuple(
                    TxnOffsetCommitPartition(place.partition, offset)
                    for place, offset in offsets.items()
                    if place.topic == name
                ),
            )
            for name in sorted(names)
        )
        commit = TxnOffsetCommitRequest(self.transactional_id, group, self.producer_id, self.epoch, topics)
        answer, _ = self._coordinate(
            GROUP, ApiKey.TXN_OFFSET_COMMIT, commit, 5 if self.protocol == 2 else 3, key=group
        )
        error = _worst(answer)
        if error:
            self._refused(error)

    def end(self, *, commit: bool) -> None:
        """EndTxn, asked again until there is an answer; nothing is sent of a transaction that wrote nothing.

        Raises:
            Fenced: it has not been done.
            InDoubt: an answer was lost on the way, and the next one did not say.
        """
        if not self._added:
            return
        try:
            answer, was_lost = self._coordinate(
                TRANSACTION, ApiKey.END_TXN, self._end_request(commit=commit), self._end_version
            )
        except MustAbort as error:
            raise InDoubt(str(error)) from None
        if answer.error_code:
            failure = InDoubt if was_lost else Fenced
            raise failure(f"EndTxn: {_name(answer.error_code)}")
        self._added.clear()
        if self.protocol == 2:
            self._identify(answer.producer_id, answer.producer_epoch)

    def late_end(self, *, commit: bool) -> Callable[[], int | None]:
        """An EndTxn of the transaction that is open now, to be sent at any time, on a connection of its own.

        Returns its error code, or None where no answer came. It may be sent from another thread: what this producer's
        own connections carry meanwhile would be taken for its answer.
        """
        request, version = self._end_request(commit=commit), self._end_version

        def send() -> int | None:
            with closing(RawProducer(self._ports, self.transactional_id)) as own, suppress(*_LOST):
                node = own._coordinator(TRANSACTION, self.transactional_id)
                if node is not None:
                    answer = ask(own._connection(node), ApiKey.END_TXN, request, version=version)
                    return int(answer.error_code)
            return None

        return send

    def move_to(self, ports: Sequence[int]) -> None:
        """Go on with the same cluster behind other ports."""
        self.close()
        self._ports = tuple(ports)
        self._coordinators.clear()
        self._leaders.clear()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def _end_version(self) -> int:
        return 5 if self.protocol == 2 else 4

    def _end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)

    def _identify(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def _refused(self, error: int) -> NoReturn:
        failure = Fenced if error in _FATAL else MustAbort
        raise failure(_name(error))

    def _coordinate(
        self, kind: int, api: ApiKey, request: Any, version: int, *, key: str | None = None
    ) -> tuple[Any, bool]:
        """The first answer of the coordinator that is not "come again", and whether one before it may have been lost.

        Raises:
            MustAbort: there was none in time.
        """
        key = key or self.transactional_id
        deadline = time.monotonic() + self._patience_s
        was_lost = False
        while time.monotonic() < deadline:
            node = self._coordinator(kind, key)
            if node is not None:
                try:
                    answer = ask(self._connection(node), api, request, version=version)
                except _LOST:
                    was_lost = True
                    self._forget(node)
                else:
                    error = _worst(answer)
                    if not (
                        error and (ErrorCode(error).retriable or error == ErrorCode.UNSTABLE_OFFSET_COMMIT)
                    ):
                        return answer, was_lost
                    was_lost |= error != ErrorCode.CONCURRENT_TRANSACTIONS
                    if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                        self._coordinators.pop((kind, key), None)
            time.sleep(_AGAIN_S)
        raise MustAbort(f"no answer to {api.name} within {self._patience_s:.0f} s")

    def _coordinator(self, kind: int, key: str) -> int | None:
        """Its port; None where nobody says."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        for port in self._ports:
            try:
                request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
                (found,) = ask(
                    self._connection(port), ApiKey.FIND_COORDINATOR, request, version=4
                ).coordinators
            except _LOST:
                self._forget(port)
                continue
            if not found.error_code:
                self._coordinators[kind, key] = found.port
                return int(found.port)
        return None

    def _leader(self, place: Place) -> int | None:
        if place not in self._leaders:
            for port in self._ports:
                try:
                    request = MetadataRequest((TopicSelector(name=place.topic),), False)
                    answer = ask(self._connection(port), ApiKey.METADATA, request, version=9)
                except _LOST:
                    self._forget(port)
                    continue
                ports = {broker.node_id: broker.port for broker in answer.brokers}
                for each in answer.topics[0].partitions:
                    if each.leader_id in ports:
                        self._leaders[Place(place.topic, each.partition_index)] = ports[each.leader_id]
                if place in self._leaders:
                    break
        return self._leaders.get(place)

    def _place(self, place: Place, body: bytes) -> int:
        """The base offset."""
        error, offset = self._produce(place, body)
        if error:
            self._refused(error)
        return offset

    def _produce(self, place: Place, body: bytes) -> tuple[int, int]:
        """(error code, base offset), asked again with the same sequence where that may help.

        Raises:
            MustAbort: there was no answer in time.
        """
        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline:
            node = self._leader(place)
            if node is not None:
                try:
                    error, offset = self._ask_produce(self._connection(node), body)
                except _LOST:
                    self._forget(node)
                else:
                    if not error or not ErrorCode(error).retriable:
                        return error, offset
                self._leaders.clear()
            time.sleep(_AGAIN_S)
        raise MustAbort(f"no answer to Produce within {self._patience_s:.0f} s")

    @property
    def _produce_version(self) -> int:
        return 12 if self.protocol == 2 else 11

    def _produce_body(self, place: Place, values: Sequence[bytes], sequence: int) -> bytes:
        """Produce v9 to v12 of one batch for one partition."""
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch(
            [Record(value, timestamp_ms=now_ms) for value in values],
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        return flexible_produce_body(self.transactional_id, place.topic, batch, partition=place.partition)

    def _ask_produce(self, connection: WireSocket, body: bytes) -> tuple[int, int]:
        asked = connection.send_request(ApiKey.PRODUCE, self._produce_version, body, flexible=True)
        answer = connection.read_frame()
        assert struct.unpack_from(">i", answer)[0] == asked
        # correlation id, no tags, one topic, its name (shorter than 127 bytes), one partition
        at = 4 + 1 + 1
        at += answer[at] + 1
        _, error, offset = struct.unpack_from(">ihq", answer, at)
        return error, offset

    def _connection(self, port: int) -> WireSocket:
        if port not in self._connections:
            self._connections[port] = WireSocket(port, timeout_s=ANSWER_S)
        return self._connections[port]

    def _forget(self, port: int) -> None:
        connection = self._connections.pop(port, None)
        if connection is not None:
            connection.close()
        self._coordinators.clear()
        self._leaders.clear()


def _worst(answer: Any) -> int:
    """The first error of an answer, of itself or of any of its partitions."""
    error: int = getattr(answer, "error_code", 0)
    if error:
        return error
    for topic in getattr(answer, "results_by_topic", ()):
        for each in topic.results_by_partition:
            # One that was refused is told with its own error; the others were not attempted.
            if each.partition_error_code:
                return int(each.partition_error_code)
    for topic in getattr(answer, "topics", ()):
        for partition in topic.partitions:
            if partition.error_code:
                return int(partition.error_code)
    return 0


def _name(error: int) -> str:
    return ErrorCode(error).name
