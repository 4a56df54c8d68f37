"""What Apache Kafka itself lists in DescribeConfigs, read from `kafka/*.tsv`.

The files are facts: `python -m scripts.kafka_settings` asks a broker of Apache Kafka for them. They are read when they
are first asked for, because no start needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from appliance.config.declaration import ConfigType

_DIRECTORY: Final = Path(__file__).with_name("kafka")
_NULL: Final = "\\N"


@dataclass(frozen=True, slots=True)
class KafkaSetting:
    """One setting of Kafka: `default_name` is the name under which its default is reported."""

    name: str
    type: ConfigType
    default_name: str
    default: str | None

    @property
    def is_sensitive(self) -> bool:
        """Passwords are never told."""
        return self.type is ConfigType.PASSWORD


def _rows(file: str) -> Iterator[list[str]]:
    for line in (_DIRECTORY / file).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            yield line.split("\t")


def _settings(file: str) -> Mapping[str, KafkaSetting]:
    return {
        name: KafkaSetting(name, ConfigType[kind], default_name, None if default == _NULL else default)
        for name, kind, _, default_name, default in _rows(file)
    }


@cache
def kafka_broker_settings() -> Mapping[str, KafkaSetting]:
    """By name, those of a broker."""
    return _settings("broker.tsv")


@cache
def kafka_group_settings() -> Mapping[str, KafkaSetting]:
    """By name, those of a group."""
    return _settings("group.tsv")
