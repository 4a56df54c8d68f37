"""From one TOML file and the flags to `Settings`.

Names are dotted. In the file a name may be one quoted key (`"max.connections.per.ip" = 500`) or tables. TOML
itself refuses `max.connections = …` beside `max.connections.per.ip = …`, since the first name would be a
value and a table at once, so quoting is the form the documentation shows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from appliance.config.declaration import Declaration, Value, text_of, unknown_name
from appliance.config.kafka_settings import kafka_broker_settings
from appliance.config.sections.delegation_tokens import SECRET_OPTION
from appliance.config.sections.tls import OF_LISTENERS
from appliance.config.settings import SECTIONS, Settings, option_declarations
from appliance.config.topic_configs import TOPIC_CONFIGS
from appliance.config.topic_defaults import BROKER_WIDE, scaled, topic_defaults
from appliance.errors import ConfigurationError

_NO_OVERRIDES: Final[Mapping[str, str]] = {}

_NAMED_OTHERWISE: Final[Mapping[str, str]] = {
    "broker.id": "slots are numbered from 0; set slots to how many there are",
    "log.dir": "set log.dirs, or data.dir",
    "node.id": "slots are numbered from 0; set slots to how many there are",
}
"""Kafka's names for what is decided otherwise here, and how."""

ALIASES: Final[Mapping[str, str]] = {
    "num.io.threads": "io.workers",
    "num.network.threads": "network.processes",
}
"""Kafka's names for options of ours that mean nearly the same: processes here, threads there."""


_OF_LISTENER: Final = re.compile(r"listener\.name\.(.+?)\.((?:sasl|ssl)\..+)")
"""Kafka's form of an option that is set for one listener."""


_FOR_ONE_LISTENER: Final = frozenset({"sasl.enabled.mechanisms"}) | OF_LISTENERS


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as somebody wrote it, and where."""

    name: str
    raw: object
    origin: str


def load_settings(
    toml_path: Path | None = None,
    overrides: Mapping[str, str] = _NO_OVERRIDES,
    *,
    without: Collection[str] = (),
    defaults: Mapping[str, str] = _NO_OVERRIDES,
) -> Settings:
    """The settings that a file and `overrides` (option name → text, from flags) describe; overrides win.

    `without`: names in the file that do not count. `defaults`: option name → text, for what neither says.

    Raises:
        ConfigurationError: naming the file or flag, the option, and what is wrong with it.
    """
    given = {one.name: one for one in _from_file(toml_path)} if toml_path is not None else {}
    given = {name: one for name, one in given.items() if name not in without}
    given |= {name: _Given(name, text, "command line") for name, text in overrides.items()}

    if SECRET_OPTION in overrides:
        raise ConfigurationError(
            f"command line: {SECRET_OPTION}: every user of this host can read the command line; write the secret "
            "into the configuration file, with mode 0600"
        )
    if toml_path is not None and SECRET_OPTION in given and given[SECRET_OPTION].origin == str(toml_path):
        _require_private(toml_path)

    aliases = {alias: name for alias, name in ALIASES.items() if alias in given}
    for alias, name in aliases.items():
        one = given.pop(alias)
        if name in given:
            raise ConfigurationError(
                f"{one.origin}: {alias}: is another name of {name}, which is set as well"
            )
        given[name] = _Given(name, one.raw, one.origin)
    given = {name: _Given(name, text, "default") for name, text in defaults.items()} | given

    options = option_declarations()
    values: dict[str, dict[str, Value]] = {"": {}, **{section: {} for section in SECTIONS}}
    configured: dict[str, str] = {}
    of_listeners: dict[str, dict[str, dict[str, Value]]] = {"sasl": {}, "ssl": {}}
    for one in given.values():
        try:
            of_listener = _OF_LISTENER.fullmatch(one.name)
            if of_listener is not None and of_listener[2] in _FOR_ONE_LISTENER:
                section, field_name, declaration = options[of_listener[2]]
                value = replace(declaration, name=one.name).parse(one.raw)
                of_listeners[section].setdefault(of_listener[1].upper(), {})[field_name] = value
            elif one.name in options:
                section, field_name, declaration = options[one.name]
                value = declaration.parse(one.raw)
                if isinstance(value, Path):
                    base = (
                        toml_path.parent if one.origin != "command line" and toml_path is not None else Path()
                    )
                    value = (base / value.expanduser()).absolute()
                values[section][field_name] = value
            elif one.name in BROKER_WIDE:
                value = _broker_wide_value(one)
            else:
                raise _unknown(one.name)
        except ConfigurationError as fault:
            raise ConfigurationError(f"{one.origin}: {fault}") from None
        configured[one.name] = text_of(value) or ""

    values[""].setdefault("data_dir", Path("data").absolute())
    origin = f"{toml_path}: " if toml_path is not None else ""
    try:
        return _build(values, configured, aliases, of_listeners)
    except ConfigurationError as fault:
        raise ConfigurationError(f"{origin}{fault}") from None


def _build(
    values: Mapping[str, Mapping[str, Value]],
    configured: Mapping[str, str],
    aliases: Mapping[str, str],
    of_listeners: Mapping[str, Mapping[str, Mapping[str, Value]]],
) -> Settings:
    # The declarations have already checked every type; mypy cannot follow them through a mapping.
    own: dict[str, Any] = dict(values[""])
    for section, of in SECTIONS.items():
        more: dict[str, Any] = {}
        if section == "sasl":
            more["of_listeners"] = {
                name: fields["enabled_mechanisms"] for name, fields in of_listeners["sasl"].items()
            }
        elif section == "ssl":
            more["of_listeners"] = of_listeners["ssl"]
        own[section] = of(**dict[str, Any](values[section]), **more)
    return Settings(
        **own, topic_defaults=topic_defaults(configured), configured=dict(configured), aliases=dict(aliases)
    )


def _broker_wide_value(given: _Given) -> Value:
    declaration, topic, synonym = BROKER_WIDE[given.name]
    value = declaration.parse(given.raw)
    text = text_of(value)
    if text is None:
        raise ConfigurationError(f"{given.name}: must be {declaration.allowed()}")
    topic.parse(scaled(text, synonym), exact=True)
    return value


def _unknown(name: str) -> ConfigurationError:
    if name in TOPIC_CONFIGS and (synonyms := TOPIC_CONFIGS[name].synonyms):
        return ConfigurationError(
            f"{name}: is a topic setting; the default for all topics is set by {synonyms[0].name}"
        )
    if name in TOPIC_CONFIGS:
        return ConfigurationError(
            f"{name}: is a topic setting without a default for all topics; set it on the topic"
        )
    if name in _NAMED_OTHERWISE:
        return ConfigurationError(f"{name}: {_NAMED_OTHERWISE[name]}")
    if name in kafka_broker_settings():
        return ConfigurationError(
            f"{name}: a setting of Apache Kafka that the appliance does not use; leave it out"
        )
    return unknown_name(name, [*option_declarations(), *BROKER_WIDE])


def _from_file(path: Path) -> Iterator[_Given]:
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        if _is_properties(path):
            raise ConfigurationError(
                f"{path}: this is Kafka's format (server.properties); the appliance reads TOML:"
                " see docs/configuration.md"
            ) from None
        raise ConfigurationError(
            f"{path}: is not valid TOML: {fault} (write a dotted name in quotes)"
        ) from None
    seen: set[str] = set()
    for name, raw in _flat(table, ""):
        if name in seen:
            raise ConfigurationError(f"{path}: {name}: set twice")
        seen.add(name)
        yield _Given(name, raw, str(path))


def _require_private(path: Path) -> None:
    """Refuse a file with a secret that every user of the host can read."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o004:
        raise ConfigurationError(
            f"{path}: {SECRET_OPTION}: every user of this host can read the file (mode {mode:04o}); set mode 0600"
        )


def _is_properties(path: Path) -> bool:
    """Whether each line reads as a Java property, and some of them under names that Kafka has."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(("#", "!"))]
    found = [re.fullmatch(r"([A-Za-z][A-Za-z0-9_.\-]*)\s*[=:].*", line) for line in told]
    names = {each[1] for each in found if each is not None}
    return bool(names & kafka_broker_settings().keys()) and all(found)


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def broker_declarations() -> dict[str, Declaration]:
    """Every name a file or flag may set, with its declaration, sorted by name."""
    own = {name: declaration for name, (_, _, declaration) in option_declarations().items()}
    return dict(sorted((own | {name: each[0] for name, each in BROKER_WIDE.items()}).items()))
