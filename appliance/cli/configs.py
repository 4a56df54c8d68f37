"""`appliance configs`: describe, set, unset; of a topic, a broker, all brokers or a group.

librdkafka cannot name all brokers at once (Kafka's tool: `--entity-default`), so our own codec asks for those, without
TLS. What is set there is shown as the source "all brokers" where it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import admin_client, answer_of, asked
from appliance.cli.cluster_view import first_that_answers, refusal_of
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.options import client_options, setting_and_value
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.request import request
from appliance.cli.watch import watch_option, watched
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource, ResourceType
from appliance.protocol.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    ConfigOperation,
    IncrementalAlterConfigsRequest,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "file or command line",
    5: "default",
    8: "group",
}
"""Kafka's ConfigSource in a person's words. The wire has one number for what a file and what a flag said."""

Target = tuple[str, str]
"""("topic", its name), ("broker", its id, or "" for all brokers) or ("group", its id)."""

ALL_BROKERS: Final[Target] = ("broker", "")
DESCRIBE_VERSION: Final = 4
ALTER_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """A setting of all brokers, as librdkafka would give it."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    synonyms: Mapping[str, _Entry] = field(default_factory=dict)


@click.group(cls=AliasedGroup, short_help="Show and change settings of topics, brokers and groups.")
def configs() -> None:
    """Show and change settings of topics, brokers and consumer groups.

    A change is in effect when the command has ended.
    """


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that say whose settings are meant."""
    for option in (
        click.option("--all-brokers", is_flag=True, help="All brokers."),
        click.option("--group", "-g", metavar="GROUP", help="A consumer group by its id."),
        click.option("--broker", metavar="ID", type=click.IntRange(min=0), help="A broker by its id."),
        click.option("--topic", "-t", metavar="TOPIC", help="A topic by its name."),
    ):
        command = option(command)
    return command


@configs.command()
@target_options
@click.option("--all", "everything", is_flag=True, help="Also show defaults.")
@watch_option
@json_option
@client_options
def describe(
    *,
    topic: str | None,
    broker: int | None,
    group: str | None,
    all_brokers: bool,
    everything: bool,
    as_json: bool,
    bootstrap: str,
    watch_s: float | None,
) -> None:
    """Show settings, their values, and where each value comes from."""
    target = _target(topic, broker, group, all_brokers=all_brokers)
    client = admin_client(bootstrap)
    watched(
        lambda: _show(_described(client, target, bootstrap), everything=everything, as_json=as_json), watch_s
    )


def _show(entries: Mapping[str, Any], *, everything: bool, as_json: bool) -> None:
    rows = [
        {
            "name": name,
            "value": entry.value,
            "source": _source(entry),
            "read_only": entry.is_read_only,
            "synonyms": [
                {"name": each.name, "value": each.value, "source": _source(each)}
                for each in entry.synonyms.values()
            ],
        }
        for name, entry in sorted(entries.items())
        if everything or _source(entry) != "default"
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("SETTING", "VALUE", "FROM"), [(row["name"], row["value"], row["source"]) for row in rows]
        )
    else:
        click.echo("no setting is set", err=True)


@configs.command(name="set")
@click.argument("settings", metavar="NAME=VALUE...", nargs=-1, required=True)
@target_options
@json_option
@client_options
def set_configs(
    *,
    settings: tuple[str, ...],
    topic: str | None,
    broker: int | None,
    group: str | None,
    all_brokers: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Set settings, and print their old and new values."""
    wanted: dict[str, str | None] = dict(setting_and_value("NAME=VALUE", text) for text in settings)
    _alter(bootstrap, _target(topic, broker, group, all_brokers=all_brokers), wanted, as_json=as_json)


@configs.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@target_options
@json_option
@client_options
def unset(
    *,
    names: tuple[str, ...],
    topic: str | None,
    broker: int | None,
    group: str | None,
    all_brokers: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Remove settings, and print their old and new values.

    The value then comes from the next level that has one: the broker, all brokers, the configuration file, or the
    default.
    """
    _alter(
        bootstrap,
        _target(topic, broker, group, all_brokers=all_brokers),
        dict.fromkeys(names),
        as_json=as_json,
    )


def _target(topic: str | None, broker: int | None, group: str | None, *, all_brokers: bool) -> Target:
    """Whose settings are meant.

    Raises:
        click.UsageError: nobody's, or several ones'.
    """
    said = {"topic": topic, "broker": None if broker is None else str(broker), "group": group}
    targets = [(kind, name) for kind, name in said.items() if name is not None]
    if all_brokers:
        targets.append(ALL_BROKERS)
    if len(targets) != 1:
        raise click.UsageError("give one of --topic TOPIC, --broker ID, --group GROUP, --all-brokers")
    return targets[0]


def _alter(bootstrap: str, target: Target, wanted: Mapping[str, str | None], *, as_json: bool) -> None:
    """Sets, or with None takes away, and says what became of it; all of it is done or nothing is."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
    )

    client = admin_client(bootstrap)
    before = _described(client, target, bootstrap)
    _require_settings(
        client, target, bootstrap, [name for name, value in wanted.items() if value is None], before
    )
    if target == ALL_BROKERS:
        _alter_all_brokers(bootstrap, wanted)
    else:
        resource = _resource(target)
        for name, value in wanted.items():
            operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            resource.add_incremental_config(ConfigEntry(name, value or "", incremental_operation=operation))
        answer_of(client.incremental_alter_configs([resource])[resource])
    after = _described(client, target, bootstrap)
    rows = [
        {"name": name, "before": _value(before, name), "after": _value(after, name)}
        for name in sorted(wanted)
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        before_text, after_text = ("-" if row[when] is None else row[when] for when in ("before", "after"))
        click.echo(f"{row['name']}: {before_text} → {after_text}")


def _require_settings(
    client: AdminClient, target: Target, bootstrap: str, names: Sequence[str], described: Mapping[str, Any]
) -> None:
    """Return if all of `names` are settings of the target, set or not.

    A broker removes what it does not know without an error, so a typing error would look like a success.

    Raises:
        BrokerError: one of them is no setting; the text names it.
    """
    unknown = [name for name in names if name not in described]
    if unknown and target == ALL_BROKERS:
        # This level has only what is set. A broker has all settings.
        brokers = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).brokers
        every = _described(client, ("broker", str(min(brokers))), bootstrap)
        unknown = [name for name in unknown if name not in every]
    if unknown:
        kind = "broker" if target == ALL_BROKERS else target[0]
        raise BrokerError(f"{', '.join(unknown)}: no such {kind} setting; nothing was changed")


def _resource(target: Target) -> Any:
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    kind, name = target
    return ConfigResource(ConfigResource.Type[kind.upper()], name)


def _described(client: AdminClient, target: Target, bootstrap: str) -> Mapping[str, Any]:
    if target == ALL_BROKERS:
        return _of_all_brokers(bootstrap)
    kind, name = target
    if kind == "broker":
        # librdkafka would wait for it to come until the request times out.
        brokers = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).brokers
        if int(name) not in brokers:
            raise BrokerError(f"there is no broker {name}")
    resource = _resource(target)
    try:
        described: dict[str, Any] = answer_of(client.describe_configs([resource])[resource])
    except BrokerError as fault:
        raise BrokerError(f"{' '.join(target)}: {fault}") from fault
    return described


def _of_all_brokers(bootstrap: str) -> dict[str, _Entry]:
    body = DescribeConfigsRequest((DescribedResource(int(ResourceType.BROKER), ""),), include_synonyms=True)
    address = first_that_answers(bootstrap)
    (result,) = request(address, ApiKey.DESCRIBE_CONFIGS, DESCRIBE_VERSION, body, oldest=1).results
    if result.error_code:
        raise BrokerError(f"all brokers: {refusal_of(result.error_code, result.error_message)}")
    return {
        each.name: _Entry(
            each.name,
            each.value,
            each.config_source,
            each.read_only,
            {other.name: _Entry(other.name, other.value, other.source, True) for other in each.synonyms},
        )
        for each in result.configs
    }


def _alter_all_brokers(bootstrap: str, wanted: Mapping[str, str | None]) -> None:
    changes = tuple(
        AlterableConfig(name, int(ConfigOperation.DELETE if value is None else ConfigOperation.SET), value)
        for name, value in wanted.items()
    )
    body = IncrementalAlterConfigsRequest((AlterConfigsResource(int(ResourceType.BROKER), "", changes),))
    address = first_that_answers(bootstrap)
    (answer,) = request(address, ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, body, oldest=0).responses
    if answer.error_code:
        raise BrokerError(refusal_of(answer.error_code, answer.error_message))


def _value(entries: Mapping[str, Any], name: str) -> str | None:
    entry = entries.get(name)
    return None if entry is None else entry.value


def _source(entry: Any) -> str:
    return _SOURCES.get(int(getattr(entry.source, "value", entry.source)), "elsewhere")
