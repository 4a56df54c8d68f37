"""Transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Transactions, and the topic that their coordinators keep them in."""

    state_log_num_partitions: int = option(
        50,
        "transaction.state.log.num.partitions",
        unit="partitions",
        minimum=1,
        doc="Number of partitions of __transaction_state when the broker creates this topic. A "
        "transactional id determines its partition.",
    )
    state_log_replication_factor: int = option(
        0,
        "transaction.state.log.replication.factor",
        type=ConfigType.SHORT,
        unit="replicas",
        minimum=1,
        maximum=32,
        special=(0,),
        doc="Number of replicas of __transaction_state when the broker creates this topic. 0 means the "
        "number of slots, but at most 3.",
    )
    state_log_min_isr: int = option(
        2,
        "transaction.state.log.min.isr",
        unit="replicas",
        minimum=1,
        doc="min.insync.replicas of __transaction_state when the broker creates this topic. If the "
        "topic has fewer replicas, the value is the number of replicas.",
    )
    state_log_segment_bytes: int = option(
        100 * _MIB,
        "transaction.state.log.segment.bytes",
        unit="bytes",
        minimum=_MIB,
        doc="Segment size of __transaction_state. The cleaner compacts only closed segments. Therefore "
        "a new coordinator must read more records if segments are large.",
    )
    max_timeout_ms: int = option(
        900_000,
        "transaction.max.timeout.ms",
        unit="ms",
        minimum=1,
        doc="The longest transaction.timeout.ms that a producer can request.",
    )
    id_expiration_ms: int = option(
        604_800_000,
        "transactional.id.expiration.ms",
        unit="ms",
        minimum=1,
        doc="Time for which the coordinator keeps a transactional id after its last use. The coordinator "
        "always keeps a transactional id with an open transaction.",
    )
    expired_check_interval_ms: int = option(
        3_600_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        unit="ms",
        minimum=1,
        doc="Interval at which the coordinator looks for expired transactional ids.",
    )
    ids_max: int = option(
        1_000_000,
        "transactional.id.max.count",
        unit="ids",
        minimum=1,
        doc="Maximum number of transactional ids that all coordinators keep together. At this number, the "
        "coordinators reject requests with new ids.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
