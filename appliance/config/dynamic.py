"""Broker settings that change while the appliance runs, and what all levels together make of the topic settings.

Levels, the first that says something wins: set on the slot, set on all slots, set in the file or by a flag, default.
When the supervisor has read the file again (SIGHUP), what it says now of these settings is published under FILE, beside
what was set on slots. From then on it counts instead of what processes have read at their start.
Within a level Kafka's order of names decides: log.retention.ms before log.retention.minutes before
log.retention.hours. Source: Kafka's `DynamicBrokerConfig.scala`. As there, only the first name of a topic setting
can be changed while the broker runs.

Where we are stricter: a name that nobody declared is refused (Kafka keeps it for plugins), and so is a number
below its range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from appliance.config.declaration import (
    INT64_MAX,
    ConfigSource,
    ConfigType,
    Declaration,
    Effect,
    unknown_name,
)
from appliance.config.kafka_settings import kafka_broker_settings
from appliance.config.loggers import KINDS, LEVEL, LEVEL_OF_KIND, ROOT, setting_of
from appliance.config.sections.network import connections_by_address
from appliance.config.settings import Settings, option_declarations
from appliance.config.topic_configs import TOPIC_CONFIGS
from appliance.config.topic_defaults import BROKER_WIDE, scaled, topic_defaults
from appliance.errors import ConfigurationError

PRODUCER_ID_EXPIRATION_MS: Final = "producer.id.expiration.ms"


SLOT_STOPPED: Final = "slot.stopped"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_RATE: Final = "leader.replication.throttled.rate"

PER_SLOT: Final[Mapping[str, Declaration]] = {
    SLOT_STOPPED: Declaration(
        name=SLOT_STOPPED,
        type=ConfigType.BOOLEAN,
        default=False,
        doc="Whether the slot is stopped. A stopped slot leads and follows nothing and is not listed as a broker, also "
        "after a restart.",
        effect=Effect.AT_ONCE,
    ),
    FOLLOWER_RATE: Declaration(
        name=FOLLOWER_RATE,
        type=ConfigType.LONG,
        default=INT64_MAX,
        doc="Maximum rate at which the slot copies throttled partitions that it follows and is not in sync with.",
        unit="bytes a second",
        minimum=0,
        effect=Effect.AT_ONCE,
    ),
    LEADER_RATE: Declaration(
        name=LEADER_RATE,
        type=ConfigType.LONG,
        default=INT64_MAX,
        doc="Maximum rate at which followers that are not in sync copy throttled partitions that the slot leads.",
        unit="bytes a second",
        minimum=0,
        effect=Effect.AT_ONCE,
    ),
}
"""What is said of one slot while the appliance runs, never of all, nor in the file."""


CLEANER_BACKOFF_MS: Final = "log.cleaner.backoff.ms"
CLEANER_BUFFER_BYTES: Final = "log.cleaner.dedupe.buffer.size"
CLEANER_RATE: Final = "log.cleaner.io.max.bytes.per.second"
CONNECTIONS_MAX: Final = "max.connections"
CONNECTIONS_MAX_PER_IP: Final = "max.connections.per.ip"
CONNECTIONS_PER_IP_OVERRIDES: Final = "max.connections.per.ip.overrides"
CONNECTION_RATE: Final = "max.connection.creation.rate"
SLOW_REQUEST_MS: Final = "log.slow.request.ms"

SHARED_BY_SLOTS: Final = frozenset(
    {
        CLEANER_BACKOFF_MS,
        CLEANER_BUFFER_BYTES,
        CLEANER_RATE,
        CONNECTIONS_MAX,
        CONNECTIONS_MAX_PER_IP,
        CONNECTIONS_PER_IP_OVERRIDES,
        CONNECTION_RATE,
        LEVEL,
        SLOW_REQUEST_MS,
        *LEVEL_OF_KIND,
    }
)
"""Settings of processes that all slots share: set on all brokers at once, or on the only one."""


def _dynamic() -> dict[str, Declaration]:
    wide = [each.synonyms[0].name for each in TOPIC_CONFIGS.values() if each.synonyms]
    found = {name: BROKER_WIDE[name][0] for name in wide}
    found.update(PER_SLOT)
    found.update(LEVEL_OF_KIND)
    for name in (PRODUCER_ID_EXPIRATION_MS, *(SHARED_BY_SLOTS - LEVEL_OF_KIND.keys())):
        found[name] = option_declarations()[name][2]
    return found


DYNAMIC_BROKER_CONFIGS: Final[Mapping[str, Declaration]] = _dynamic()
"""Broker settings that IncrementalAlterConfigs may change; every other one is read at the start."""


KAFKA_NAMES: Final = frozenset(
    {
        "node.id",
        "broker.id",
        "process.roles",
        "listeners",
        "advertised.listeners",
        "log.dir",
        "log.dirs",
        "num.network.threads",
        "num.io.threads",
    }
)
"""Kafka's names for what is decided otherwise here; shown, never set."""


FILE: Final = "file"
"""Beside node ids and "": what the configuration file and the flags say since the file was read again."""


def of_file(settings: Settings) -> dict[str, str]:
    """What the file and the flags say of settings that may change while the appliance runs, name → text."""
    return {
        name: text
        for name, text in settings.configured.items()
        if name in DYNAMIC_BROKER_CONFIGS and name not in PER_SLOT
    }


@dataclass(frozen=True, slots=True)
class BrokerConfigs:
    """What was set while running, name → text: on one slot, and on all of them.

    `of_file`: what the file says since it was read again; None: it was not.
    """

    of_slot: Mapping[str, str] = field(default_factory=dict)
    of_all: Mapping[str, str] = field(default_factory=dict)
    of_file: Mapping[str, str] | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Mapping[str, str]], slot: int) -> BrokerConfigs:
        """Those of `slot`. `stored`: node id, or "" for all slots → what was set there."""
        return cls(stored.get(str(slot), {}), stored.get("", {}), stored.get(FILE))

    @classmethod
    def of_every(cls, stored: Mapping[str, Mapping[str, str]]) -> BrokerConfigs:
        """Those that count for all slots. `stored`: as of `of`."""
        return cls({}, stored.get("", {}), stored.get(FILE))

    def configured(self, settings: Settings) -> Mapping[str, str]:
        """What the file and the flags say now."""
        if self.of_file is None:
            return settings.configured
        kept = {
            name: text for name, text in settings.configured.items() if name not in DYNAMIC_BROKER_CONFIGS
        }
        return kept | dict(self.of_file)

    def levels(self, settings: Settings) -> tuple[tuple[Mapping[str, str], ConfigSource], ...]:
        """Every level but the defaults, first one first in line."""
        return (
            (self.of_slot, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.configured(settings), ConfigSource.STATIC_BROKER_CONFIG),
        )

    def topic_defaults(self, settings: Settings) -> dict[str, str]:
        """What the levels make of the topic settings, only where one of them says something."""
        if not self.of_slot and not self.of_all and self.of_file is None:
            return dict(settings.topic_defaults)
        return topic_defaults(self.of_slot, self.of_all, self.configured(settings))

    def log_defaults(self, settings: Settings) -> dict[str, str]:
        """What the logs of the slot go by where their topic says nothing: topic settings, and two that are ours."""
        name = PRODUCER_ID_EXPIRATION_MS
        expiration_ms = self.of_slot.get(name) or self.of_all.get(name)
        if expiration_ms is None and self.of_file is not None:
            expiration_ms = self.of_file.get(name, str(DYNAMIC_BROKER_CONFIGS[name].default))
        return self.topic_defaults(settings) | {
            "max.decompressed.bytes": str(settings.broker.max_decompressed_message_bytes),
            PRODUCER_ID_EXPIRATION_MS: expiration_ms or str(settings.broker.producer_id_expiration_ms),
        }


def shared_value(settings: Settings, stored: Mapping[str, Mapping[str, str]], name: str) -> int:
    """What counts of a setting in SHARED_BY_SLOTS: set on the only slot, else on all, else in the file, or the default.

    `stored`: node id, or "" for all slots, or FILE → what was set there while running.
    """
    return int(shared_text(settings, stored, name))


def shared_text(settings: Settings, stored: Mapping[str, Mapping[str, str]], name: str) -> str:
    """As `shared_value`, of a setting that is no number."""
    of_slot = stored.get("0", {}) if settings.slots == 1 else {}
    text = of_slot.get(name, stored.get("", {}).get(name))
    if text is None and (of_file := stored.get(FILE)) is not None:
        text = of_file.get(name, str(DYNAMIC_BROKER_CONFIGS[name].default))
    if text is not None:
        return text
    section, field_name, _ = option_declarations()[name]
    return str(getattr(getattr(settings, section) if section else settings, field_name))


def log_levels(settings: Settings, stored: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return logger → level: `root`, and each kind of process that has a level of its own. `stored` as above."""
    of_slot = stored.get("0", {}) if settings.slots == 1 else {}
    of_all = stored.get("", {})
    found = {ROOT: shared_text(settings, stored, LEVEL)}
    for kind in KINDS:
        name = setting_of(kind)
        level = of_slot.get(name, of_all.get(name))
        if level is not None:
            found[kind] = level
    return found


def replication_rate(stored: Mapping[str, Mapping[str, str]], slot: int, name: str) -> int | None:
    """The rate that was set on `slot` under FOLLOWER_RATE or LEADER_RATE, bytes a second; None: no limit."""
    rate = int(stored.get(str(slot), {}).get(name, INT64_MAX))
    return None if rate >= INT64_MAX else rate


def validate_broker_configs(configs: Mapping[str, str]) -> None:
    """Refuses what may not be set on a broker while it runs.

    Raises:
        ConfigurationError: naming the setting and what is allowed.
    """
    fixed = [name for name in configs if name not in DYNAMIC_BROKER_CONFIGS and _is_known(name)]
    if fixed:
        raise ConfigurationError(
            f"{', '.join(fixed)}: cannot be changed while the broker runs; change the configuration file and restart"
        )
    for name, text in configs.items():
        declaration = DYNAMIC_BROKER_CONFIGS.get(name)
        if declaration is None:
            raise unknown_name(name, DYNAMIC_BROKER_CONFIGS, kind="broker setting")
        declaration.parse(text, exact=True)
        if name == CONNECTIONS_PER_IP_OVERRIDES:
            connections_by_address(text)
        if name in BROKER_WIDE:
            _, topic, synonym = BROKER_WIDE[name]
            topic.parse(scaled(text, synonym), exact=True)


def _is_known(name: str) -> bool:
    return (
        name in BROKER_WIDE
        or name in option_declarations()
        or name in KAFKA_NAMES
        or name in kafka_broker_settings()
    )
