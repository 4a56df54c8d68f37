"""`appliance retries`: enable, list, describe, disable (docs/retries.md)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import admin_client, answer_of, asked, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.options import client_options, duration_ms
from appliance.cli.output import json_option, print_json, print_table, say
from appliance.cli.topic_client import ClientReader, topic_configs
from appliance.cli.topic_names import is_internal
from appliance.config.retry_configs import (
    DEAD_LETTER_OF,
    RETRY_DEAD_LETTERS,
    RETRY_ENABLE,
    RETRY_GROUP,
    RETRY_LEVELS,
    RETRY_MAX,
    RETRY_ORDERED,
    RETRY_ORDERED_BY_KEY,
    RETRY_TOPIC,
)
from appliance.config.sections.services import level_delays_ms
from appliance.protocol.retry_names import dead_letter_topic, retry_topic
from appliance.views.retries import Retries, all_retries, retries_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

MESSAGE_BYTES: Final = 4 << 20
"""What retry topics and dead-letter topics take: a record of the topic grows by its history."""
_MAX_MESSAGE: Final = "max.message.bytes"


@click.group(cls=AliasedGroup, short_help="Deliver records again that the consumers of a group hand back.")
def retries() -> None:
    """Deliver records again, after a delay, that the consumers of a group hand back. See docs/retries.md."""


@retries.command()
@click.argument("group", metavar="GROUP")
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--levels",
    metavar="DURATION,...",
    default="10s,30s,1m,2m,5m,10m",
    show_default=True,
    help="How long a record waits after its first failure, the second one, and so on.",
)
@click.option(
    "--max",
    "retries_max",
    metavar="N",
    type=click.IntRange(min=0, max=10_000),
    default=16,
    show_default=True,
    help="How often a record is delivered again. After one more failure it is a dead letter.",
)
@click.option(
    "--ordered",
    is_flag=True,
    help="Records that follow a failed one in its partition wait for it. Needs the native client.",
)
@click.option(
    "--ordered-by-key",
    is_flag=True,
    help="As --ordered, but only records with the key of the failed one wait for it.",
)
@click.option(
    "--keep",
    "keep_ms",
    metavar="DURATION",
    default="30d",
    show_default=True,
    callback=duration_ms,
    help="How long dead letters are kept.",
)
@json_option
@client_options
def enable(
    *,
    group: str,
    topic: str,
    levels: str,
    retries_max: int,
    ordered: bool,
    ordered_by_key: bool,
    keep_ms: int,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Let the consumers of GROUP hand back records of TOPIC. Run it again to change the levels.

    The command creates two topics, or changes their settings: the retry topic TOPIC.GROUP.retry, and the dead-letter
    topic TOPIC.GROUP.dlq. They have as many partitions and replicas as TOPIC.
    """
    names = [each.strip() for each in levels.split(",")]
    level_delays_ms("--levels", names)
    client = admin_client(bootstrap)
    found = _checked_topic(client, topic)
    existing = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
    retry, dead = retry_topic(group, topic), dead_letter_topic(group, topic)
    message_bytes = str(max(MESSAGE_BYTES, found.message_bytes))
    dead_configs = {DEAD_LETTER_OF: retry, _MAX_MESSAGE: message_bytes, "retention.ms": str(keep_ms)}
    retry_configs = {
        "delivery.delay.enable": "true",
        "delivery.delay.mode": "exact",
        _MAX_MESSAGE: message_bytes,
        RETRY_ENABLE: "true",
        RETRY_GROUP: group,
        RETRY_TOPIC: topic,
        RETRY_LEVELS: ",".join(names),
        RETRY_MAX: str(retries_max),
        RETRY_ORDERED: str(ordered or ordered_by_key).lower(),
        RETRY_ORDERED_BY_KEY: str(ordered_by_key).lower(),
        RETRY_DEAD_LETTERS: dead,
    }
    known = topic_configs(client, [name for name in (retry, dead) if name in existing])
    _refuse_strangers(known, retry, dead, group, topic)
    # The dead-letter topic first: without it, dead records would come again.
    _set_up(client, dead, found, dead_configs, is_there=dead in existing)
    _set_up(client, retry, found, retry_configs, is_there=retry in existing)
    if retry not in existing and (fault := _begin_at_start(client, group, retry, found.partitions)):
        click.echo(
            f"note: set auto.offset.reset=earliest for the consumers of {group}, so that they do not miss the first "
            f"records of {retry}. The command cannot set their offsets: {fault}",
            err=True,
        )
    if as_json:
        print_json(_retries_of(bootstrap, group, topic).as_json())
        return
    click.echo(f"the group {group} can hand back records of {topic}: produce them to {retry}")
    click.echo(f"the group must also read {retry}; dead letters are in {dead}")


@retries.command(name="list")
@json_option
@client_options
def list_retries(*, as_json: bool, bootstrap: str) -> None:
    """List the retries of all groups."""
    with closing(ClientReader(bootstrap)) as reader:
        found = all_retries(reader)
    if as_json:
        print_json([each.as_json() for each in found])
    elif found:
        print_table(
            ("GROUP", "TOPIC", "LEVELS", "MAX", "STATE"),
            [
                (each.group, each.topic, ",".join(each.levels), each.retries_max, _state(each))
                for each in found
            ],
            right=("MAX",),
        )
    else:
        click.echo("no retries", err=True)


@retries.command()
@click.argument("group", metavar="GROUP")
@click.argument("topic", metavar="TOPIC")
@json_option
@client_options
def describe(*, group: str, topic: str, as_json: bool, bootstrap: str) -> None:
    """Show the topics, the levels and what is wrong."""
    found = _retries_of(bootstrap, group, topic)
    if as_json:
        print_json(found.as_json())
        return
    click.echo(f"{group} on {topic}: {_state(found)}")
    click.echo(f"  retry topic        {found.retry_topic}")
    click.echo(f"  dead-letter topic  {found.dead_letter_topic}")
    click.echo(f"  levels             {', '.join(found.levels)}")
    click.echo(f"  delivered again    {found.retries_max} times at most")
    if found.is_ordered:
        which = "with the key of a failed one" if found.is_ordered_by_key else "that follow a failed one"
        click.echo(f"  order              records {which} wait for it")
    if found.fault:
        say(f"  fault              {found.fault}")


@retries.command()
@click.argument("group", metavar="GROUP")
@click.argument("topic", metavar="TOPIC")
@json_option
@client_options
def disable(*, group: str, topic: str, as_json: bool, bootstrap: str) -> None:
    """Refuse records that consumers hand back. What waits already is still delivered; both topics stay."""
    client = admin_client(bootstrap)
    found = _retries_of(bootstrap, group, topic)
    _alter(client, found.retry_topic, {RETRY_ENABLE: "false"})
    if as_json:
        print_json(_retries_of(bootstrap, group, topic).as_json())
    else:
        click.echo(f"disabled retries of the group {group} on {topic}; records that wait are still delivered")


class _Topic:
    """The topic whose records are retried."""

    __slots__ = ("message_bytes", "partitions", "replicas")

    def __init__(self, partitions: int, replicas: int, message_bytes: int) -> None:
        self.partitions = partitions
        self.replicas = replicas
        self.message_bytes = message_bytes


def _state(found: Retries) -> str:
    if not found.is_enabled:
        return "disabled"
    return "faulty" if found.fault else "enabled"


def _retries_of(bootstrap: str, group: str, topic: str) -> Retries:
    with closing(ClientReader(bootstrap)) as reader:
        return retries_of(reader, group, topic)


def _checked_topic(client: AdminClient, topic: str) -> _Topic:
    from confluent_kafka import TopicCollection

    if is_internal(topic):
        raise BrokerError(f"{topic} is an internal topic")
    try:
        described = answer_of(client.describe_topics(TopicCollection([topic]))[topic])
    except BrokerError as fault:
        raise BrokerError(f"{topic}: {fault}") from fault
    configs = topic_configs(client, [topic])[topic]
    if configs.get(RETRY_GROUP) or configs.get(DEAD_LETTER_OF):
        raise BrokerError(f"{topic} belongs to the retries of another topic")
    return _Topic(
        len(described.partitions),
        max(len(each.replicas) for each in described.partitions),
        int(configs[_MAX_MESSAGE]),
    )


def _refuse_strangers(
    known: dict[str, dict[str, str]], retry: str, dead: str, group: str, topic: str
) -> None:
    """Raises BrokerError where a topic of this name exists that these retries did not create."""
    found = known.get(retry)
    if found is not None and (found.get(RETRY_GROUP), found.get(RETRY_TOPIC)) != (group, topic):
        raise BrokerError(
            f"the topic {retry} exists, and is not the retry topic of the group {group!r} on {topic}"
        )
    found = known.get(dead)
    if found is not None and found.get(DEAD_LETTER_OF) != retry:
        raise BrokerError(f"the topic {dead} exists, and is not the dead-letter topic of {retry}")


def _set_up(client: AdminClient, name: str, like: _Topic, configs: dict[str, str], *, is_there: bool) -> None:
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    if is_there:
        _alter(client, name, configs)
        return
    wanted = NewTopic(name, like.partitions, like.replicas, config=configs)
    pending: Any = asked(lambda: client.create_topics([wanted], operation_timeout=REQUEST_TIMEOUT_S))
    try:
        answer_of(pending[name])
    except BrokerError as fault:
        raise BrokerError(f"{name}: {fault}") from fault


def _begin_at_start(client: AdminClient, group: str, retry: str, partitions: int) -> str:
    """Commit the start of the retry topic for the group, because by default consumers begin at the end.

    Returns why it is not possible, for example because the group has members; "" if it is.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    places = [TopicPartition(retry, partition, 0) for partition in range(partitions)]
    pending = asked(
        lambda: client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=REQUEST_TIMEOUT_S
        )
    )
    try:
        altered = answer_of(pending[group])
    except BrokerError as fault:
        return str(fault)
    refused = [each.error for each in altered.topic_partitions if each.error is not None]
    return refusal(refused[0]) if refused else ""


def _alter(client: AdminClient, name: str, configs: dict[str, str]) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    for key, value in configs.items():
        resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET))
    try:
        answer_of(client.incremental_alter_configs([resource])[resource])
    except BrokerError as fault:
        raise BrokerError(f"{name}: {fault}") from fault
