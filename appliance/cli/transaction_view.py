"""What brokers tell of transactions (KIP-664): ids by state, one id in full, the producers of a partition.

Any broker names the coordinator of an id. Only the coordinator describes the id, and only the leader of a partition
knows the producers of the partition.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from appliance.cli.cluster_view import ClusterView, PartitionView, refusal_of
from appliance.cli.connecting import BrokerError
from appliance.cli.request import request
from appliance.cluster import TRANSACTION_STATE, TopicPartition
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_producers import DescribeProducersRequest, ProducerState, TopicRequest
from appliance.protocol.apis.describe_transactions import DescribedTransaction, DescribeTransactionsRequest
from appliance.protocol.apis.find_coordinator import TRANSACTION, FindCoordinatorRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.list_transactions import ListedTransaction, ListTransactionsRequest
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition

T = TypeVar("T")

FIND_VERSION: Final = 4
DESCRIBE_VERSION: Final = 0
PRODUCERS_VERSION: Final = 0
INIT_VERSION: Final = 4
MARKERS_VERSION: Final = 1

PATIENCE_S: Final = 30.0
RETRY_AFTER_S: Final = 0.1

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id, with the broker that coordinates it."""

    coordinator: int
    told: ListedTransaction


@dataclass(frozen=True, slots=True)
class Described:
    """A transactional id in full, with the broker that coordinates it."""

    coordinator: int
    told: DescribedTransaction

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the open transaction, by topic and number."""
        return sorted(
            TopicPartition(topic.topic, number) for topic in self.told.topics for number in topic.partitions
        )


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """A producer that the leader of a partition remembers."""

    place: TopicPartition
    told: ProducerState

    @property
    def is_open(self) -> bool:
        """Whether the producer has a transaction open in the partition."""
        return self.told.current_txn_start_offset >= 0


class Refused(Exception):
    """A broker answered with an error code; internal to this module."""

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.message = message


def list_transactions(
    view: ClusterView,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> list[Listed]:
    """Return the transactional ids that pass every filter, by name, from all brokers of `view`.

    Raises:
        BrokerError: a broker does not answer, refuses, or does not know a state of the filter.
    """
    body = ListTransactionsRequest(tuple(states), tuple(producer_ids), duration_ms, pattern)
    # The oldest version that carries the filters, because older brokers lack the later ones.
    version = 2 if pattern is not None else 1 if duration_ms >= 0 else 0
    found = []
    for slot in view.slots:
        if slot.fenced:
            continue
        answer = _patiently(partial(_listed, slot.address, version, body), slot.address)
        if answer.unknown_state_filters:
            raise BrokerError(
                f"{slot.address} knows no transaction state {', '.join(answer.unknown_state_filters)}"
            )
        found += [Listed(slot.slot, each) for each in answer.transaction_states]
    return sorted(found, key=lambda each: each.told.transactional_id)


def describe_transactions(address: str, names: Iterable[str]) -> dict[str, Described]:
    """Return transactional id → its description; an id that no coordinator knows is left out.

    Raises:
        BrokerError: a coordinator is not found, does not answer or refuses.
    """
    found = {}
    for name in names:
        described = _patiently(partial(_describe, address, name), name)
        if described is not None:
            found[name] = described
    return found


def require_every_coordinator(view: ClusterView, address: str) -> None:
    """Ask the coordinator of each partition of `__transaction_state` for an id that nobody has.

    A coordinator lists only the ids of the partitions that it can read, and says nothing of the others.

    Raises:
        BrokerError: a partition is not served, so its ids are missing from every list.
    """
    count = sum(each.topic == TRANSACTION_STATE for each in view.partitions)
    names = iter(f"nobody-{number}" for number in itertools.count())
    wanted = set(range(count))
    while wanted:
        name = next(names)
        partition = group_partition(name, count)
        if partition not in wanted:
            continue
        wanted.remove(partition)
        try:
            _patiently(partial(_describe, address, name), f"{TRANSACTION_STATE}-{partition}")
        except BrokerError as fault:
            raise BrokerError(
                f"{TRANSACTION_STATE}-{partition} cannot be read now. Its transactions look hanging, "
                f"although they may not be. Repair the partition first ({fault})"
            ) from fault


def partition_producers(view: ClusterView, partitions: Iterable[PartitionView]) -> list[PartitionProducer]:
    """Return the producers that the leaders remember, by partition and producer id. A partition that is gone has none.

    Raises:
        BrokerError: a partition has no leader, or a leader does not answer or refuses.
    """
    by_leader: dict[int, dict[str, list[int]]] = {}
    for each in partitions:
        if each.leader is None:
            raise BrokerError(f"{each} has no leader")
        by_leader.setdefault(each.leader, {}).setdefault(each.topic, []).append(each.partition)
    found = []
    for leader, topics in by_leader.items():
        body = DescribeProducersRequest(
            tuple(TopicRequest(name, tuple(numbers)) for name, numbers in topics.items())
        )
        answer = request(address_of(view, leader), ApiKey.DESCRIBE_PRODUCERS, PRODUCERS_VERSION, body)
        for topic in answer.topics:
            for of_partition in topic.partitions:
                place = TopicPartition(topic.name, of_partition.partition_index)
                if of_partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                if of_partition.error_code:
                    raise BrokerError(
                        f"{place}: {refusal_of(of_partition.error_code, of_partition.error_message)}"
                    )
                found += [PartitionProducer(place, each) for each in of_partition.active_producers]
    return sorted(found, key=lambda each: (each.place, each.told.producer_id))


def abort_in_partition(
    view: ClusterView,
    partition: PartitionView,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    """Write an abort marker for a producer to one partition, without its transaction coordinator.

    Raises:
        BrokerError: the partition has no leader, or its leader refuses.
    """
    if partition.leader is None:
        raise BrokerError(f"{partition} has no leader")
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(partition.topic, (partition.partition,)),),
        coordinator_epoch=coordinator_epoch,
    )
    answer = request(
        address_of(view, partition.leader),
        ApiKey.WRITE_TXN_MARKERS,
        MARKERS_VERSION,
        WriteTxnMarkersRequest((marker,)),
    )
    for each in answer.markers:
        for topic in each.topics:
            for result in topic.partitions:
                if result.error_code:
                    raise BrokerError(f"{partition}: {refusal_of(result.error_code, None)}")


def fence_producer(address: str, name: str, timeout_ms: int) -> tuple[int, int]:
    """Fence the producer of a transactional id, which aborts its open transaction. Return the id and epoch it has now.

    Raises:
        BrokerError: the coordinator refuses, or the abort takes longer than `PATIENCE_S`.
    """

    def init() -> tuple[int, int]:
        coordinator = _coordinator(address, name)[1]
        answer = _told(
            request(
                coordinator,
                ApiKey.INIT_PRODUCER_ID,
                INIT_VERSION,
                InitProducerIdRequest(name, timeout_ms),
            )
        )
        return answer.producer_id, answer.producer_epoch

    return _patiently(init, name)


def address_of(view: ClusterView, broker: int) -> str:
    """Return `HOST:PORT` of a broker. Raises BrokerError where clients are not told of it."""
    for slot in view.slots:
        if slot.slot == broker:
            return slot.address
    raise BrokerError(f"there is no broker {broker}")


def _describe(address: str, name: str) -> Described | None:
    broker, coordinator = _coordinator(address, name)
    body = DescribeTransactionsRequest((name,))
    (told,) = request(
        coordinator, ApiKey.DESCRIBE_TRANSACTIONS, DESCRIBE_VERSION, body
    ).transaction_states or (DescribedTransaction(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),)
    if told.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    return Described(broker, _told(told))


def _coordinator(address: str, name: str) -> tuple[int, str]:
    body = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(name,))
    answer = request(address, ApiKey.FIND_COORDINATOR, FIND_VERSION, body)
    (found,) = answer.coordinators
    _told(found)
    return found.node_id, f"{found.host}:{found.port}"


def _listed(address: str, version: int, body: ListTransactionsRequest) -> Any:
    return _told(request(address, ApiKey.LIST_TRANSACTIONS, version, body))


def _told(answer: Any) -> Any:
    if answer.error_code:
        raise Refused(answer.error_code, getattr(answer, "error_message", None))
    return answer


def _patiently(ask: Callable[[], T], what: str) -> T:
    """Ask until the coordinator has loaded and no transition is under way, `PATIENCE_S` at most."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except Refused as fault:
            if fault.code not in _RETRIABLE or time.monotonic() > give_up_at_s:
                raise BrokerError(f"{what}: {refusal_of(fault.code, fault.message)}") from fault
        time.sleep(RETRY_AFTER_S)
