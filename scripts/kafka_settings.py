"""Regenerate what DescribeConfigs and ApiVersions of Apache Kafka answer, as data files of `appliance/config/kafka/`.

Asks a broker of Apache Kafka, by default one that it starts from `.cache/kafka`: `python -m scripts.kafka_settings`.
A row is a name, a type, `fixed` where Kafka calls the setting read-only, the name that the default is reported under,
and the default; `\\N` stands for null. Facts only: Kafka's descriptions are left out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.describe_configs import (
    ConfigEntry,
    ConfigSource,
    ConfigType,
    DescribeConfigsRequest,
    DescribedResource,
    ResourceType,
)

RELEASE: Final = "4.3.1"
DIRECTORY: Final = Path(__file__).resolve().parents[1] / "appliance" / "config" / "kafka"
NULL: Final = "\\N"
DESCRIBE_VERSION: Final = 4


def described(address: str, kind: ResourceType, name: str) -> tuple[ConfigEntry, ...]:
    """Every setting of one resource, with its synonyms."""
    body = DescribeConfigsRequest((DescribedResource(int(kind), name),), include_synonyms=True)
    (result,) = request(address, ApiKey.DESCRIBE_CONFIGS, DESCRIBE_VERSION, body).results
    assert not result.error_code, result
    configs: tuple[ConfigEntry, ...] = result.configs
    return configs


def default_of(entry: ConfigEntry) -> tuple[str, str | None]:
    """The name that the default stands under, and the default; None where Kafka has none."""
    defaults = [each for each in entry.synonyms if each.source == ConfigSource.DEFAULT_CONFIG]
    own = [each for each in defaults if each.name == entry.name]
    # A broker setting may list other settings' defaults; a group setting lists its broker option alone.
    for each in own or (defaults if entry.config_source == ConfigSource.DEFAULT_CONFIG else []):
        return each.name, each.value
    return entry.name, entry.value if entry.config_source == ConfigSource.DEFAULT_CONFIG else None


def rows(entries: tuple[ConfigEntry, ...]) -> list[str]:
    """One line a setting, sorted by name."""
    found = []
    for entry in sorted(entries, key=lambda each: each.name):
        synonym, default = default_of(entry)
        kind = ConfigType(entry.config_type).name
        cells = (
            entry.name,
            kind,
            "fixed" if entry.read_only else "dynamic",
            synonym,
            NULL if default is None else default,
        )
        found.append("\t".join(cells) + "\n")
    return found


def write(address: str) -> None:
    """Writes the files."""
    DIRECTORY.mkdir(exist_ok=True)
    broker = request(address, ApiKey.DESCRIBE_CLUSTER, 0, DescribeClusterRequest(False)).brokers[0].broker_id
    head = (
        f"# Apache Kafka {RELEASE}: name, type, fixed or dynamic, name of the default, default."
        " Regenerate: python -m scripts.kafka_settings\n"
    )
    for file, kind, name in (
        ("broker.tsv", ResourceType.BROKER, str(broker)),
        ("group.tsv", ResourceType.GROUP, "described"),
    ):
        text = head + "".join(rows(described(address, kind, name)))
        (DIRECTORY / file).write_text(text, encoding="utf-8")
    versions = request(address, ApiKey.API_VERSIONS, 4, ApiVersionsRequest("appliance", "1"))
    finalized = {each.name: each for each in versions.finalized_features}
    lines = [
        f"{each.name}\t{each.min_version}\t{each.max_version}\t"
        f"{finalized[each.name].max_version_level if each.name in finalized else 0}\n"
        for each in sorted(versions.supported_features, key=lambda each: each.name)
    ]
    head = f"# Apache Kafka {RELEASE}: feature, lowest and highest level, level of a new cluster.\n"
    (DIRECTORY / "features.tsv").write_text(head + "".join(lines), encoding="utf-8")


def main() -> None:
    """Asks the broker whose address was given, or one of its own."""
    if len(sys.argv) > 1:
        write(sys.argv[1])
        return
    from tests.support.apache_kafka import ApacheKafka

    with tempfile.TemporaryDirectory() as directory:
        judge = ApacheKafka(Path(directory) / "kafka")
        judge.start()
        try:
            write(judge.address)
        finally:
            judge.stop()


if __name__ == "__main__":
    main()
