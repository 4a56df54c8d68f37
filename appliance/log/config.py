"""What the settings of a topic mean to its logs. Names, units and defaults are declared in `appliance.config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, Self

from appliance.config.declaration import Declaration
from appliance.config.topic_configs import topic_config_declarations
from appliance.errors import ConfigurationError
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, Codec

DELETE = "delete"
PAGE_CACHE = "page-cache"
FSYNC = "fsync"
COMPACT = "compact"
PRODUCER = "producer"
_CODECS = {
    PRODUCER: -1,
    "uncompressed": int(Codec.NONE),
    "gzip": int(Codec.GZIP),
    "snappy": int(Codec.SNAPPY),
    "lz4": int(Codec.LZ4),
    "zstd": int(Codec.ZSTD),
}
_PRODUCER_ID_EXPIRATION_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings of one log, in Kafka's units. Those without a topic setting of Kafka's say so.

    Fields are named as the settings are, with underscores. Times are milliseconds, sizes bytes.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = (1 << 20) + 12
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    message_timestamp_before_max_ms: int = 2**63 - 1
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: frozenset[str] = frozenset({DELETE})
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    compression_type: str = PRODUCER
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    decompressed_ratio_max: int = 32
    durability: str = PAGE_CACHE
    max_decompressed_bytes: int = field(default=DECOMPRESSED_BYTES_MAX, metadata={"own": True})
    producer_id_expiration_ms: int = field(default=_PRODUCER_ID_EXPIRATION_MS, metadata={"own": True})

    @property
    def target_codec(self) -> int:
        """The codec in which every batch is stored, -1 where it is the producer's choice."""
        return _CODECS[self.compression_type]

    @property
    def compression_level(self) -> int | None:
        """The level of `target_codec`, None where it has none."""
        levels = (
            None,
            self.compression_gzip_level,
            None,
            self.compression_lz4_level,
            self.compression_zstd_level,
        )
        return levels[self.target_codec] if self.target_codec >= 0 else None

    @property
    def client_decompressed_bytes_max(self) -> int:
        """How many bytes a client's batch may grow to when it is decompressed.

        Batches that are in the log already, from before the setting or from Apache Kafka, are read up to
        `max_decompressed_bytes`.
        """
        return min(self.max_message_bytes * self.decompressed_ratio_max, self.max_decompressed_bytes)

    @property
    def is_compacted(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def is_fsync(self) -> bool:
        """Whether a record is acknowledged only once it is on the disk."""
        return self.durability == FSYNC

    @property
    def is_deletable(self) -> bool:
        """Whether old records may be deleted: by retention, and by who asks for it."""
        return DELETE in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @classmethod
    def from_configs(cls, configs: Mapping[str, str]) -> Self:
        """Settings from Kafka's topic setting names; those that a log has no use for are passed over.

        `max.decompressed.bytes` and `producer.id.expiration.ms` are taken here as well, although Kafka has
        them per broker or not at all. `segment_ms` of a compacted log is at most `max_compaction_lag_ms`: what must
        be compacted soon must be closed before.

        Raises:
            ConfigurationError: naming the setting and what it takes.
        """
        declared = _declarations()
        values: dict[str, Any] = {}
        for each in fields(cls):
            name = each.name.replace("_", ".")
            text = configs.get(name)
            if text is None:
                continue
            if each.metadata.get("own"):
                values[each.name] = _positive(name, text)
            else:
                value = declared[name].parse(text)
                values[each.name] = frozenset(value) if isinstance(value, tuple) else value
        settings = cls(**values)
        if settings.is_compacted and settings.max_compaction_lag_ms < settings.segment_ms:
            settings = replace(settings, segment_ms=settings.max_compaction_lag_ms)
        return settings


class LastSettings:
    """`LogSettings.from_configs`, which remembers what it came to last: a topic's partitions come together."""

    __slots__ = ("_configs", "_defaults", "_settings")

    def __init__(self) -> None:
        self._defaults: Mapping[str, str] = {}
        self._configs: Mapping[str, str] = {}
        self._settings: LogSettings | None = None

    def of(self, defaults: Mapping[str, str], configs: Mapping[str, str]) -> LogSettings:
        """The settings by a topic's `configs`, and by `defaults` where it has none. None of them may be changed later.

        Raises:
            ConfigurationError: as `from_configs`.
        """
        if self._settings is None or defaults is not self._defaults or configs != self._configs:
            self._settings = LogSettings.from_configs({**defaults, **configs})
            self._defaults, self._configs = defaults, configs
        return self._settings


@cache
def _declarations() -> Mapping[str, Declaration]:
    return {declaration.name: declaration for declaration in topic_config_declarations()}


def _positive(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigurationError(f"{name} is {text!r}, but takes a whole number of at least 1")
    return value
