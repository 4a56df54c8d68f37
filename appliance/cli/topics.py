"""`appliance topics`: create, list, describe, add-partitions, delete-records, delete."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import admin_client, answer_of, asked
from appliance.cli.confirming import require_terminal, require_yes, yes_option
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.options import client_options, setting_and_value
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table, say
from appliance.cli.topic_names import compiled, is_internal, named_topics, regex_option

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PARTITIONS_MAX: Final = 100_000
REPLICAS_MAX: Final = 10_000
"""What librdkafka sends at most; beyond, it raises what is meant for programmers."""


@click.group(cls=AliasedGroup, short_help="Create, list, describe, grow and delete topics.")
def topics() -> None:
    """Create, list, describe, grow and delete topics, or their oldest records."""


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(min=1, max=PARTITIONS_MAX),
    help="Number of partitions.  [default: the broker's num.partitions]",
)
@click.option(
    "--replication-factor",
    "-r",
    type=click.IntRange(min=1, max=REPLICAS_MAX),
    help="Number of replicas.  [default: the broker's default.replication.factor]",
)
@click.option("--config", "configs", metavar="NAME=VALUE", multiple=True, help="A topic setting; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@json_option
@client_options
def create(
    *,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
    bootstrap: str,
) -> int:
    """Create topics."""
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    settings = dict(setting_and_value("--config", text) for text in configs)
    wanted = [
        NewTopic(
            name,
            num_partitions=partitions or -1,
            replication_factor=replication_factor or -1,
            config=settings,
        )
        for name in dict.fromkeys(names)
    ]
    client = admin_client(bootstrap)
    pending = asked(lambda: client.create_topics(wanted, operation_timeout=REQUEST_TIMEOUT_S))
    return _settle(
        pending,
        "created",
        "created {}",
        tolerated="TOPIC_ALREADY_EXISTS" if if_not_exists else None,
        as_json=as_json,
    )


@topics.command(name="list")
@click.argument("expressions", metavar="[REGEX...]", nargs=-1)
@click.option("--all", "with_internal", is_flag=True, help="Also list internal topics.")
@json_option
@client_options
def list_topics(*, expressions: tuple[str, ...], with_internal: bool, as_json: bool, bootstrap: str) -> None:
    """List the topics; with regular expressions, only those whose whole name matches one."""
    patterns = [compiled(text) for text in expressions]
    client = admin_client(bootstrap)
    found = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
    rows = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(each.replicas) for each in topic.partitions.values()), default=0),
            "internal": name.startswith("__"),
        }
        for name, topic in sorted(found.items())
        if (with_internal or not name.startswith("__"))
        and (not patterns or any(pattern.fullmatch(name) for pattern in patterns))
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("TOPIC", "PARTITIONS", "REPLICAS"),
            [(row["topic"], row["partitions"], row["replication_factor"]) for row in rows],
            right=("PARTITIONS", "REPLICAS"),
        )
    else:
        click.echo("no topics", err=True)


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@regex_option
@json_option
@client_options
def describe(*, names: tuple[str, ...], is_regex: bool, as_json: bool, bootstrap: str) -> None:
    """Show partitions, leaders, replicas, offsets and the settings of the topic."""
    client = admin_client(bootstrap)
    described = [_describe(client, name) for name in _named(client, names, is_regex=is_regex)]
    if as_json:
        print_json(described)
        return
    for topic in described:
        click.echo(f"{topic['topic']}  id {topic['topic_id']}")
        for name, value in topic["configs"].items():
            say(f"  {name} = {value}")
        print_table(
            ("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END"),
            [
                (
                    each["partition"],
                    each["leader"],
                    ",".join(map(str, each["replicas"])),
                    ",".join(map(str, each["isr"])),
                    each["start_offset"],
                    each["end_offset"],
                )
                for each in topic["partitions"]
            ],
            right=("PARTITION", "LEADER", "START", "END"),
        )


@topics.command(name="add-partitions")
@click.argument("name", metavar="TOPIC")
@click.argument("total", metavar="TOTAL", type=click.IntRange(min=1, max=PARTITIONS_MAX))
@json_option
@client_options
def add_partitions(*, name: str, total: int, as_json: bool, bootstrap: str) -> int:
    """Grow a topic to TOTAL partitions. Keys may map to other partitions, and partitions cannot be removed again."""
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

    client = admin_client(bootstrap)
    pending = asked(
        lambda: client.create_partitions([NewPartitions(name, total)], operation_timeout=REQUEST_TIMEOUT_S)
    )
    return _settle(pending, "grown", f"grown to {total} partitions: {{}}", as_json=as_json)


@topics.command(name="delete-records")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--before",
    "bounds",
    metavar="PARTITION=OFFSET",
    multiple=True,
    required=True,
    help="First offset to keep, or `end` to keep none; repeatable.",
)
@yes_option
@json_option
@client_options
def delete_records(*, name: str, bounds: tuple[str, ...], yes: bool, as_json: bool, bootstrap: str) -> int:
    """Delete all records of partitions before an offset. The command asks for confirmation; without a terminal it
    requires --yes.
    """
    from confluent_kafka import TopicPartition

    wanted = [TopicPartition(name, *_partition_and_offset(text)) for text in bounds]
    if not yes:
        require_yes(
            "topics delete-records",
            "Delete the records before these offsets?",
            names=[f"{name} {each}" for each in bounds],
        )
    client = admin_client(bootstrap)
    outcomes = Outcomes(as_json=as_json)
    known = _partitions(client, name)
    for place in wanted:
        if place.partition not in known:
            reason = f"topic {name} has no such partition" if known else f"there is no topic {name}"
            identity = {"topic": name, "partition": place.partition}
            outcomes.refused(identity, f"{name}-{place.partition}", reason)
    there = [place for place in wanted if place.partition in known]
    if not there:
        return outcomes.finish()
    pending = asked(lambda: client.delete_records(there, operation_timeout=REQUEST_TIMEOUT_S))
    for place, future in sorted(pending.items(), key=lambda item: item[0].partition):
        identity = {"topic": name, "partition": place.partition}
        shown = f"{name}-{place.partition}"
        try:
            start = answer_of(future).low_watermark
        except BrokerError as fault:
            outcomes.refused(identity, shown, fault)
        else:
            outcomes.done(identity, "deleted", f"{shown} begins at {start}", start_offset=start)
    return outcomes.finish()


def _partitions(client: AdminClient, name: str) -> frozenset[int]:
    """The partitions of a topic; none if there is no such topic.

    librdkafka would only say that it found no leader of a partition.
    """
    topic = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics.get(name)
    return frozenset() if topic is None else frozenset(topic.partitions)


def _partition_and_offset(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition("=")
    if offset == "end":
        offset = "-1"
    elif not re.fullmatch(r"[0-9]{1,18}", offset):
        offset = ""
    if not offset or not re.fullmatch(r"[0-9]{1,9}", partition):
        raise click.UsageError(f"--before {text!r}: must be PARTITION=OFFSET or PARTITION=end")
    return int(partition), int(offset)


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@regex_option
@yes_option
@json_option
@client_options
def delete(*, names: tuple[str, ...], is_regex: bool, yes: bool, as_json: bool, bootstrap: str) -> int:
    """Delete topics and all their records. The command asks for confirmation; without a terminal it requires --yes.

    Internal topics cannot be deleted, because the broker keeps its own state in them.
    """
    client = admin_client(bootstrap)
    wanted = _named(client, names, is_regex=is_regex)
    if internal := [name for name in wanted if is_internal(name)]:
        raise BrokerError(
            f"{internal[0]} is an internal topic, in which the broker keeps its own state; nothing was deleted"
        )
    if not yes:
        _ask_before_deleting(client, wanted)
    pending = asked(lambda: client.delete_topics(wanted, operation_timeout=REQUEST_TIMEOUT_S))
    return _settle(pending, "deleted", "deleted {}", as_json=as_json)


def _ask_before_deleting(client: AdminClient, names: Sequence[str]) -> None:
    """Returns when the person at the terminal agrees.

    Raises:
        click.UsageError: there is no terminal to ask at.
        click.Abort: the person does not agree.
    """
    require_terminal("topics delete")
    known = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
    for name in names:
        count = len(known[name].partitions) if name in known else 0
        partitions = f"{count} partition{'' if count == 1 else 's'}" if count else "no such topic"
        click.echo(f"  {name}  ({partitions})", err=True)
    what = "this topic" if len(names) == 1 else f"these {len(names)} topics"
    click.confirm(f"Delete {what} and all their records?", abort=True, err=True)


def _named(client: AdminClient, names: Sequence[str], *, is_regex: bool) -> list[str]:
    existing = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics if is_regex else ()
    return named_topics(names, existing, is_regex=is_regex)


def _settle(
    pending: Mapping[str, Future[Any]], result: str, line: str, *, tolerated: str | None = None, as_json: bool
) -> int:
    """Says what became of each topic; 1 when any of them failed.

    Args:
        pending: topic → the answer that is awaited.
        result: what `--json` calls a success.
        line: what a person reads then; `{}` stands for the topic.
        tolerated: name of the error that counts as a success.
    """
    outcomes = Outcomes(as_json=as_json)
    for name, future in pending.items():
        try:
            answer_of(future)
        except BrokerError as fault:
            if tolerated is not None and tolerated in str(fault):
                outcomes.done({"topic": name}, "exists", f"exists already: {name}")
            else:
                outcomes.refused({"topic": name}, name, fault)
        else:
            outcomes.done({"topic": name}, result, line.format(name))
    return outcomes.finish()


def _describe(client: AdminClient, name: str) -> dict[str, Any]:
    from confluent_kafka import TopicCollection, TopicPartition
    from confluent_kafka.admin import ConfigResource, ConfigSource, OffsetSpec  # type: ignore[attr-defined]

    try:
        topic = answer_of(client.describe_topics(TopicCollection([name]))[name])
    except BrokerError as fault:
        raise BrokerError(f"{name}: {fault}") from fault
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    configs = answer_of(client.describe_configs([resource])[resource])
    places = [TopicPartition(name, each.id) for each in topic.partitions]
    offsets = {
        spec: client.list_offsets({place: getattr(OffsetSpec, spec)() for place in places})
        for spec in ("earliest", "latest")
    }
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": [
            {
                "partition": each.id,
                "leader": each.leader.id if each.leader is not None else None,
                "replicas": [node.id for node in each.replicas],
                "isr": [node.id for node in each.isr],
                "start_offset": _offset(offsets["earliest"][place]),
                "end_offset": _offset(offsets["latest"][place]),
            }
            for each, place in zip(topic.partitions, places, strict=True)
        ],
        "configs": {
            key: entry.value
            for key, entry in sorted(configs.items())
            if entry.source in (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
        },
    }


def _offset(future: Future[Any]) -> int | None:
    """None where a partition cannot tell, because it has no leader."""
    try:
        return int(answer_of(future).offset)
    except BrokerError:
        return None
