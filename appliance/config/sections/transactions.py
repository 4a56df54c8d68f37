"""Transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class TransactionsSettings:
    """Transactional ids, and the topic that keeps their transactions."""

    max_timeout_ms: int = option(
        900_000,
        "transaction.max.timeout.ms",
        unit="ms",
        minimum=1,
        doc="Longest transaction.timeout.ms that a producer may ask for. One that asks for more gets "
        "INVALID_TRANSACTION_TIMEOUT.",
    )
    id_expiration_ms: int = option(
        604_800_000,
        "transactional.id.expiration.ms",
        unit="ms",
        minimum=1,
        doc="Time after which a transactional id without an open transaction is forgotten if nobody uses it.",
    )
    id_expiration_interval_ms: int = option(
        3_600_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        unit="ms",
        minimum=1,
        doc="Interval at which the coordinator looks for transactional ids to forget.",
    )
    ids_max: int = option(
        200_000,
        "transactional.ids.max",
        unit="ids",
        minimum=1,
        doc="Maximum number of transactional ids that are kept. The producer of one more gets POLICY_VIOLATION.",
    )
    log_num_partitions: int = option(
        50,
        "transaction.state.log.num.partitions",
        unit="partitions",
        minimum=1,
        doc="Number of partitions of __transaction_state when it is created. Transactional ids are spread over them.",
    )
    log_replication_factor: int = option(
        0,
        "transaction.state.log.replication.factor",
        type=ConfigType.SHORT,
        unit="replicas",
        minimum=1,
        maximum=32,
        special=(0,),
        doc="Number of replicas of __transaction_state when it is created. 0: the number of slots, at most 3.",
    )
    log_min_isr: int = option(
        2,
        "transaction.state.log.min.isr",
        unit="replicas",
        minimum=1,
        doc="min.insync.replicas of __transaction_state when it is created; at most its number of replicas.",
    )
    log_segment_bytes: int = option(
        100 * _MIB,
        "transaction.state.log.segment.bytes",
        unit="bytes",
        minimum=_MIB,
        doc="Segment size of __transaction_state. Only closed segments are compacted, and a new coordinator "
        "reads the rest.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
