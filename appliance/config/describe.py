"""What DescribeConfigs answers, for a topic and for a broker slot.

Order of synonyms and the source that is reported: Kafka's `ConfigHelper.scala`. A topic setting lists itself
if it was set on the topic, then its broker-wide names: each with what was set, then with its default, if it
has one. The source of the first of them is the source of the setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from appliance.config.declaration import ConfigSource, ConfigType, Declaration, text_of
from appliance.config.settings import SECTIONS, Settings, declared_fields
from appliance.config.topic_configs import BROKER_WIDE, TOPIC_CONFIGS


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


def effective_topic_configs(settings: Settings, configs: Mapping[str, str]) -> dict[str, str]:
    """The value of every topic setting: the topic's own, else the broker-wide one, else the default."""
    defaults = {name: text_of(declaration.default) or "" for name, declaration in TOPIC_CONFIGS.items()}
    return defaults | dict(settings.topic_defaults) | {k: v for k, v in configs.items() if k in TOPIC_CONFIGS}


def describe_topic(settings: Settings, configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a topic on which `configs` were set, sorted by name."""
    effective = effective_topic_configs(settings, configs)
    entries = []
    for name, declaration in TOPIC_CONFIGS.items():
        synonyms = tuple(_topic_synonyms(settings, declaration, configs))
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
    settings: Settings, declaration: Declaration, configs: Mapping[str, str]
) -> Iterator[ConfigSynonym]:
    if declaration.name in configs:
        yield ConfigSynonym(declaration.name, configs[declaration.name], ConfigSource.DYNAMIC_TOPIC_CONFIG)
    for synonym in declaration.synonyms:
        if synonym.name in settings.configured:
            value = settings.configured[synonym.name]
            yield ConfigSynonym(synonym.name, value, ConfigSource.STATIC_BROKER_CONFIG)
        if synonym.default is not None:
            yield ConfigSynonym(synonym.name, synonym.default, ConfigSource.DEFAULT_CONFIG)


def describe_broker(settings: Settings, node_id: int) -> list[ConfigEntry]:
    """Every setting of broker slot `node_id`, sorted by name: our options, and Kafka's names beside them.

    All are read-only: they are read when the appliance starts.
    """
    entries = [*_options(settings), *_broker_wide(settings), *_kafka_names(settings, node_id)]
    return sorted(entries, key=lambda entry: entry.name)


def _options(settings: Settings) -> Iterator[ConfigEntry]:
    for section in (settings, *(getattr(settings, name) for name in SECTIONS)):
        for field_name, declaration in declared_fields(section):
            yield _broker_entry(settings, declaration, text_of(getattr(section, field_name)))


def _broker_wide(settings: Settings) -> Iterator[ConfigEntry]:
    for name, (declaration, _, synonym) in BROKER_WIDE.items():
        yield _broker_entry(
            settings, declaration, settings.configured.get(name, synonym.default), synonym.default
        )


def _kafka_names(settings: Settings, node_id: int) -> Iterator[ConfigEntry]:
    port = settings.port + node_id
    directory = str(settings.slot_directory(node_id))
    for name, value, declared_type, doc in (
        ("node.id", str(node_id), ConfigType.INT, "The slot's number."),
        ("broker.id", str(node_id), ConfigType.INT, "The slot's number, under Kafka's older name."),
        ("process.roles", "broker,controller", ConfigType.LIST, "The appliance is both at once."),
        ("listeners", f"PLAINTEXT://{settings.host}:{port}", ConfigType.LIST, "Where the slot listens."),
        (
            "advertised.listeners",
            f"PLAINTEXT://{settings.client_host}:{port}",
            ConfigType.LIST,
            "Where clients are told to connect.",
        ),
        ("log.dir", directory, ConfigType.LIST, "The slot's log directory."),
        ("log.dirs", directory, ConfigType.LIST, "The slot's log directories."),
        ("num.network.threads", str(settings.network.processes), ConfigType.INT, "See network.processes."),
        ("num.io.threads", str(settings.io.workers), ConfigType.INT, "See io.workers."),
    ):
        synonym = ConfigSynonym(name, value, ConfigSource.STATIC_BROKER_CONFIG)
        yield ConfigEntry(name, value, True, synonym.source, False, (synonym,), declared_type, doc)


def _broker_entry(
    settings: Settings, declaration: Declaration, value: str | None, default: str | None = None
) -> ConfigEntry:
    name = declaration.name
    default = text_of(declaration.default) if default is None else default
    synonyms = []
    if name in settings.configured:
        synonyms.append(ConfigSynonym(name, settings.configured[name], ConfigSource.STATIC_BROKER_CONFIG))
    if default is not None:
        synonyms.append(ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG))
    return ConfigEntry(
        name=name,
        value=value,
        read_only=True,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        sensitive=False,
        synonyms=tuple(synonyms),
        type=declaration.type,
        documentation=declaration.doc,
    )
