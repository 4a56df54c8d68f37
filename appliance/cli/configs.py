"""`appliance configs`: describe, set, unset; of a topic, a broker or a group.

Left out: what is set on all brokers at once, which librdkafka cannot name (Kafka's tool: `--entity-default`). It is
shown as the source "all brokers" where it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import REQUEST_TIMEOUT_S, BrokerError, admin_client, answer_of, asked
from appliance.cli.options import client_options, setting_and_value
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.watch import watch_option, watched

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
"""("topic", its name), ("broker", its id) or ("group", its id)."""


@click.group(cls=AliasedGroup, short_help="Show and change settings of topics, brokers and groups.")
def configs() -> None:
    """Show and change settings of topics, brokers and consumer groups.

    A change counts from the moment it is answered.
    """


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that say whose settings are meant."""
    for option in (
        click.option("--group", "-g", metavar="GROUP", help="A consumer group by its id."),
        click.option("--broker", metavar="ID", type=click.IntRange(min=0), help="A broker by its id."),
        click.option("--topic", "-t", metavar="TOPIC", help="A topic by its name."),
    ):
        command = option(command)
    return command


@configs.command()
@target_options
@click.option("--all", "everything", is_flag=True, help="Defaults too, not only what was set.")
@watch_option
@json_option
@client_options
def describe(
    *,
    topic: str | None,
    broker: int | None,
    group: str | None,
    everything: bool,
    as_json: bool,
    bootstrap: str,
    watch_s: float | None,
) -> None:
    """Show settings, their values, and where each value comes from."""
    client, target = admin_client(bootstrap), _target(topic, broker, group)
    watched(lambda: _show(_described(client, target), everything=everything, as_json=as_json), watch_s)


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
        click.echo("nothing is set", err=True)


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
    as_json: bool,
    bootstrap: str,
) -> None:
    """Set settings; says what each was before and is now."""
    wanted: dict[str, str | None] = dict(setting_and_value("NAME=VALUE", text) for text in settings)
    _alter(bootstrap, _target(topic, broker, group), wanted, as_json=as_json)


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
    as_json: bool,
    bootstrap: str,
) -> None:
    """Take settings away, so that what stands behind them counts again; says what each was and is."""
    _alter(bootstrap, _target(topic, broker, group), dict.fromkeys(names), as_json=as_json)


def _target(topic: str | None, broker: int | None, group: str | None) -> Target:
    """Whose settings are meant.

    Raises:
        click.UsageError: nobody's, or several ones'.
    """
    said = {"topic": topic, "broker": None if broker is None else str(broker), "group": group}
    targets = [(kind, name) for kind, name in said.items() if name is not None]
    if len(targets) != 1:
        raise click.UsageError("say one of --topic TOPIC, --broker ID, --group GROUP")
    return targets[0]


def _alter(bootstrap: str, target: Target, wanted: Mapping[str, str | None], *, as_json: bool) -> None:
    """Sets, or with None takes away, and says what became of it; all of it is done or nothing is."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
    )

    client = admin_client(bootstrap)
    before = _described(client, target)
    resource = _resource(target)
    for name, value in wanted.items():
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(name, value or "", incremental_operation=operation))
    answer_of(client.incremental_alter_configs([resource])[resource])
    after = _described(client, target)
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


def _resource(target: Target) -> Any:
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    kind, name = target
    return ConfigResource(ConfigResource.Type[kind.upper()], name)


def _described(client: AdminClient, target: Target) -> dict[str, Any]:
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


def _value(entries: Mapping[str, Any], name: str) -> str | None:
    entry = entries.get(name)
    return None if entry is None else entry.value


def _source(entry: Any) -> str:
    return _SOURCES.get(int(getattr(entry.source, "value", entry.source)), "elsewhere")
