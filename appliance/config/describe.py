"""What DescribeConfigs answers, for a topic and for a broker slot.

Order of synonyms and the source that is reported: Kafka's `ConfigHelper.scala`. A topic setting lists itself if it
was set on the topic; then, level by level (slot, all slots, file, defaults), its broker-wide names in their order.
The source of the first of them is the source of the setting.

One difference: Kafka leaves out what stands before the first of a setting's names, and so calls the retention.ms
that log.retention.hours in its file decided a default. Here only defaults are left out so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from appliance.config.declaration import ConfigSource, ConfigType, Declaration, text_of
from appliance.config.dynamic import DYNAMIC_BROKER_CONFIGS, PER_SLOT, BrokerConfigs
from appliance.config.kafka_settings import KafkaSetting, kafka_broker_settings
from appliance.config.loggers import LEVEL_OF_KIND
from appliance.config.option import declared_fields
from appliance.config.settings import SECTIONS, Settings
from appliance.config.topic_configs import TOPIC_CONFIGS
from appliance.config.topic_defaults import BROKER_WIDE

UNREAD: Final = "A setting of Apache Kafka that nothing here reads; the value is Kafka's default."

_SHOWN_BY_SLOT: Final = frozenset({"log.dirs", "listeners", "advertised.listeners"})
"""Options that are shown with the slot's own directories and ports."""

_NOTHING_SET: Final = BrokerConfigs()


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A name and value that stands behind a setting."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as DescribeConfigs shows it; `value` is None for Kafka's null."""

    name: str
    value: str | None
    read_only: bool
    source: ConfigSource
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    documentation: str

    @property
    def is_default(self) -> bool:
        """The field that DescribeConfigs v0 had in place of a source."""
        return self.source is ConfigSource.DEFAULT_CONFIG


def effective_topic_configs(
    settings: Settings, configs: Mapping[str, str], broker: BrokerConfigs = _NOTHING_SET
) -> dict[str, str]:
    """The value of every topic setting, as Kafka writes it: the topic's own, else the broker's, else the default."""
    chosen = broker.topic_defaults(settings) | dict(configs)
    return {
        name: text_of(declaration.parse(chosen[name]) if name in chosen else declaration.default) or ""
        for name, declaration in TOPIC_CONFIGS.items()
    }


def describe_topic(
    settings: Settings, configs: Mapping[str, str], broker: BrokerConfigs = _NOTHING_SET
) -> list[ConfigEntry]:
    """Every setting of a topic on which `configs` were set, sorted by name, as the slot of `broker` sees it."""
    effective = effective_topic_configs(settings, configs, broker)
    entries = []
    for name, declaration in TOPIC_CONFIGS.items():
        synonyms = tuple(_topic_synonyms(settings, declaration, configs, broker, effective[name]))
        entries.append(
            ConfigEntry(
                name=name,
                value=effective[name],
                read_only=False,
                source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
                sensitive=False,
                synonyms=synonyms,
                type=declaration.type,
                documentation=declaration.doc,
            )
        )
    return entries


def _topic_synonyms(
    settings: Settings,
    declaration: Declaration,
    configs: Mapping[str, str],
    broker: BrokerConfigs,
    value: str,
) -> Iterator[ConfigSynonym]:
    if declaration.name in configs:
        yield ConfigSynonym(declaration.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    found = list(_broker_synonyms(settings, declaration, broker))
    first = declaration.synonyms[0].name if declaration.synonyms else ""
    if found and (found[0].source is not ConfigSource.DEFAULT_CONFIG or found[0].name == first):
        yield from found


def _broker_synonyms(
    settings: Settings, topic: Declaration, broker: BrokerConfigs
) -> Iterator[ConfigSynonym]:
    """The broker-wide names of a topic setting: what was set, level by level, then the defaults."""
    for level, source in broker.levels(settings):
        for synonym in topic.synonyms:
            if synonym.name in level:
                yield ConfigSynonym(synonym.name, level[synonym.name], source)
    for synonym in topic.synonyms:
        if synonym.default is not None:
            yield ConfigSynonym(synonym.name, synonym.default, ConfigSource.DEFAULT_CONFIG)


def describe_broker(
    settings: Settings, node_id: int, broker: BrokerConfigs = _NOTHING_SET
) -> list[ConfigEntry]:
    """Every setting of broker slot `node_id`, sorted by name: our options, and all others that Kafka lists.

    Read-only are those that are read when the appliance starts, and those of Kafka that nothing here reads: they have
    Kafka's default.
    """
    entries = [
        *_options(settings, broker),
        *_broker_wide(settings, broker),
        *_per_slot(broker),
        *_level_of_kinds(broker),
        *_kafka_names(settings, node_id),
    ]
    told = {entry.name for entry in entries}
    entries += [kafka_entry(each) for name, each in kafka_broker_settings().items() if name not in told]
    return sorted(entries, key=lambda entry: entry.name)


def kafka_entry(setting: KafkaSetting) -> ConfigEntry:
    """A setting of Kafka that nothing here reads, as Kafka shows it by default, and read-only."""
    value = None if setting.is_sensitive else setting.default
    synonyms = (
        ()
        if setting.default is None
        else (ConfigSynonym(setting.default_name, value, ConfigSource.DEFAULT_CONFIG),)
    )
    return ConfigEntry(
        name=setting.name,
        value=value,
        read_only=True,
        source=ConfigSource.DEFAULT_CONFIG,
        sensitive=setting.is_sensitive,
        synonyms=synonyms,
        type=setting.type,
        documentation=UNREAD,
    )


def describe_all_brokers(of_all: Mapping[str, str]) -> list[ConfigEntry]:
    """What was set on all slots while running, sorted by name."""
    return [
        ConfigEntry(
            name=name,
            value=of_all[name],
            read_only=False,
            source=ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
            sensitive=False,
            synonyms=(ConfigSynonym(name, of_all[name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),),
            type=DYNAMIC_BROKER_CONFIGS[name].type,
            documentation=DYNAMIC_BROKER_CONFIGS[name].doc,
        )
        for name in sorted(of_all)
        if name in DYNAMIC_BROKER_CONFIGS
    ]


def _options(settings: Settings, broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    for section in (settings, *(getattr(settings, name) for name in SECTIONS)):
        for field_name, declaration in declared_fields(section):
            if declaration.name in _SHOWN_BY_SLOT:
                continue
            name, default = declaration.name, text_of(declaration.default)
            synonyms = [
                ConfigSynonym(name, level[name], source)
                for level, source in broker.levels(settings)
                if name in level
            ]
            if default is not None:
                synonyms.append(ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG))
            value = text_of(getattr(section, field_name))
            if name in DYNAMIC_BROKER_CONFIGS and synonyms:
                value = synonyms[0].value
            yield _broker_entry(declaration, value, synonyms)


def _broker_wide(settings: Settings, broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    for name, (declaration, topic, _) in BROKER_WIDE.items():
        found = list(_broker_synonyms(settings, topic, broker))
        while found and found[0].name != name:
            del found[0]
        yield _broker_entry(declaration, found[0].value if found else None, found)


def _per_slot(broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    for name, declaration in PER_SLOT.items():
        default = text_of(declaration.default) or ""
        synonyms = [ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG)]
        if name in broker.of_slot:
            synonyms.insert(0, ConfigSynonym(name, broker.of_slot[name], ConfigSource.DYNAMIC_BROKER_CONFIG))
        yield _broker_entry(declaration, synonyms[0].value, synonyms)


def _level_of_kinds(broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    """Only what is set: a dozen settings without a value would say nothing."""
    for name, declaration in LEVEL_OF_KIND.items():
        synonyms = [
            ConfigSynonym(name, level[name], source)
            for level, source in (
                (broker.of_slot, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (broker.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            )
            if name in level
        ]
        if synonyms:
            yield _broker_entry(declaration, synonyms[0].value, synonyms)


def _kafka_names(settings: Settings, node_id: int) -> Iterator[ConfigEntry]:
    directory = str(settings.slot_directory(node_id))
    directories = ",".join(map(str, settings.log_directories(node_id)))
    for name, value, declared_type, doc in (
        ("node.id", str(node_id), ConfigType.INT, "The slot's number."),
        ("broker.id", str(node_id), ConfigType.INT, "The slot's number, under Kafka's older name."),
        ("process.roles", "broker,controller", ConfigType.LIST, "The appliance is both at once."),
        (
            "listeners",
            ",".join(each.text(node_id) for each in settings.listeners),
            ConfigType.LIST,
            "Where the slot listens.",
        ),
        (
            "advertised.listeners",
            ",".join(each.advertised_text(node_id) for each in settings.listeners),
            ConfigType.LIST,
            "Address that clients connect to.",
        ),
        *(
            (
                f"listener.name.{name.lower()}.sasl.enabled.mechanisms",
                ",".join(mechanisms),
                ConfigType.LIST,
                "SASL mechanisms of one listener.",
            )
            for name, mechanisms in settings.sasl.of_listeners.items()
        ),
        *(
            (name, settings.configured[name], ConfigType.STRING, "The same option, for one listener.")
            for name in settings.configured
            if name.startswith("listener.name.") and ".ssl." in name
        ),
        ("log.dir", directory, ConfigType.LIST, "The slot's log directory."),
        ("log.dirs", directories, ConfigType.LIST, "The slot's log directories."),
        ("num.network.threads", str(settings.network.processes), ConfigType.INT, "See network.processes."),
        ("num.io.threads", str(settings.io.workers), ConfigType.INT, "See io.workers."),
    ):
        synonym = ConfigSynonym(name, value, ConfigSource.STATIC_BROKER_CONFIG)
        yield ConfigEntry(name, value, True, synonym.source, False, (synonym,), declared_type, doc)


def _broker_entry(
    declaration: Declaration, value: str | None, synonyms: Sequence[ConfigSynonym]
) -> ConfigEntry:
    is_sensitive = declaration.type is ConfigType.PASSWORD
    if is_sensitive:
        value, synonyms = None, [replace(each, value=None) for each in synonyms]
    return ConfigEntry(
        name=declaration.name,
        value=value,
        read_only=declaration.name not in DYNAMIC_BROKER_CONFIGS,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        sensitive=is_sensitive,
        synonyms=tuple(synonyms),
        type=declaration.type,
        documentation=declaration.doc,
    )
