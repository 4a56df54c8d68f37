"""`appliance log-dirs`: describe, move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import admin_client, asked
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table, shown_bytes
from appliance.cli.request import request
from appliance.cluster import TopicPartition
from appliance.log.file_names import parse_partition_directory_name
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from appliance.protocol.errors import ErrorCode

DESCRIBE_VERSION = 4
"""From this version on, the answer has the free bytes of the file system. Kafka has it since 3.3."""
MOVE_VERSION = 2
TIMEOUT_S = 30.0


@click.group(
    cls=AliasedGroup, name="log-dirs", short_help="Show log directories; move partitions between them."
)
def log_dirs() -> None:
    """Show the log directories of brokers, and move partitions between them."""


@log_dirs.command()
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; repeatable.")
@json_option
@client_options
def describe(*, topics: tuple[str, ...], as_json: bool, bootstrap: str) -> int:
    """Show the partitions in each log directory, and the progress of moves.

    Exits with 1 if a directory has failed, or if a topic does not exist.
    """
    found = [
        _told(broker, result, topics) for broker, address in _brokers(bootstrap) for result in _ask(address)
    ]
    _require_topics(bootstrap, found, topics)
    if as_json:
        print_json(found)
    else:
        _print(found)
    return 1 if any(each["error"] for each in found) else 0


@log_dirs.command()
@click.argument("places", metavar="TOPIC-PARTITION...", nargs=-1, required=True)
@click.option("--to", "path", metavar="DIRECTORY", required=True, help="Target log directory of the broker.")
@click.option(
    "--broker", type=int, help="The broker whose replicas move.  [default: each partition's leader]"
)
@json_option
@client_options
def move(*, places: tuple[str, ...], path: str, broker: int | None, as_json: bool, bootstrap: str) -> int:
    """Move partitions to another log directory of their broker, while they are in use.

    The command ends when the moves have started. `log-dirs describe` shows their progress. To cancel a move, give the
    directory in which the partition is now.
    """
    wanted = {text: parse_partition_directory_name(text) for text in dict.fromkeys(places)}
    for text, partition in wanted.items():
        if partition is None:
            raise click.UsageError(f"{text!r}: must be TOPIC-PARTITION, such as orders-0")
    partitions = [partition for partition in wanted.values() if partition is not None]
    addresses = dict(_brokers(bootstrap))
    outcomes = Outcomes(as_json=as_json)
    for identity, of_broker in _by_broker(bootstrap, partitions, broker).items():
        if identity not in addresses:
            raise BrokerError(f"there is no broker {identity}")
        topics: dict[str, list[int]] = {}
        for partition in of_broker:
            topics.setdefault(partition.topic, []).append(partition.partition)
        asked_for = tuple(AlterReplicaLogDirTopic(name, tuple(numbers)) for name, numbers in topics.items())
        body = AlterReplicaLogDirsRequest((AlterReplicaLogDir(path, asked_for),))
        response = request(addresses[identity], ApiKey.ALTER_REPLICA_LOG_DIRS, MOVE_VERSION, body, oldest=1)
        for topic in response.results:
            for each in topic.partitions:
                what = {"topic": topic.topic_name, "partition": each.partition_index, "broker": identity}
                name = f"{topic.topic_name}-{each.partition_index}"
                if each.error_code:
                    outcomes.refused(what, name, _named(each.error_code))
                else:
                    outcomes.done(what, "moving", f"moving {name} to {path}", to=path)
    return outcomes.finish()


def _require_topics(bootstrap: str, found: list[dict[str, Any]], topics: tuple[str, ...]) -> None:
    """Return if each of `topics` exists, or still has a partition in a directory while the brokers delete it.

    Raises:
        BrokerError: one of them is neither here nor there; the text names it.
    """
    missing = set(topics) - {partition["topic"] for each in found for partition in each["partitions"]}
    if not missing:
        return
    client = admin_client(bootstrap)
    missing -= asked(lambda: client.list_topics(timeout=TIMEOUT_S)).topics.keys()
    if missing:
        raise BrokerError(f"there is no topic {', '.join(sorted(missing))}")


def _by_broker(
    bootstrap: str, partitions: list[TopicPartition], broker: int | None
) -> dict[int, list[TopicPartition]]:
    if broker is not None:
        return {broker: partitions}
    client = admin_client(bootstrap)
    topics = asked(lambda: client.list_topics(timeout=TIMEOUT_S)).topics
    found: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        topic = topics.get(partition.topic)
        known = topic.partitions.get(partition.partition) if topic is not None else None
        if known is None:
            raise BrokerError(f"there is no partition {partition}")
        found.setdefault(known.leader, []).append(partition)
    return found


def _brokers(bootstrap: str) -> list[tuple[int, str]]:
    client = admin_client(bootstrap)
    brokers = asked(lambda: client.list_topics(timeout=TIMEOUT_S)).brokers
    return sorted((identity, f"{each.host}:{each.port}") for identity, each in brokers.items())


def _ask(address: str) -> Iterable[DescribeLogDirsResult]:
    response = request(
        address, ApiKey.DESCRIBE_LOG_DIRS, DESCRIBE_VERSION, DescribeLogDirsRequest(None), oldest=1
    )
    if response.error_code:
        raise BrokerError(f"{address}: {_named(response.error_code)}")
    results: tuple[DescribeLogDirsResult, ...] = response.results
    return results


def _told(broker: int, result: DescribeLogDirsResult, topics: tuple[str, ...]) -> dict[str, Any]:
    """One object a directory; the keys are stable."""
    return {
        "broker": broker,
        "log_dir": result.log_dir,
        "error": _named(result.error_code) if result.error_code else None,
        "total_bytes": result.total_bytes,
        "usable_bytes": result.usable_bytes,
        "partitions": [
            {
                "topic": topic.name,
                "partition": each.partition_index,
                "size_bytes": each.partition_size,
                "offset_lag": each.offset_lag,
                "future": each.is_future_key,
            }
            for topic in sorted(result.topics, key=lambda topic: topic.name)
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
            if not topics or topic.name in topics
        ],
    }


def _named(code: int) -> str:
    error = ErrorCode(code)
    return f"{error.message} ({error.name})"


def _print(found: list[dict[str, Any]]) -> None:
    for number, each in enumerate(found):
        if number:
            click.echo()
        room = "free space unknown, since this broker does not tell it"
        if each["total_bytes"] >= 0:
            room = f"{shown_bytes(each['usable_bytes'])} of {shown_bytes(each['total_bytes'])} free"
        click.echo(f"broker {each['broker']}: {each['log_dir']}  {each['error'] or room}")
        rows = [
            (
                partition["topic"],
                partition["partition"],
                shown_bytes(partition["size_bytes"]),
                f"{partition['offset_lag']} behind" if partition["future"] else None,
            )
            for partition in each["partitions"]
        ]
        if rows:
            print_table(("TOPIC", "PARTITION", "SIZE", "MOVING HERE"), rows, right=("PARTITION", "SIZE"))
