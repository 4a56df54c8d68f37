"""`appliance log-dirs`: describe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from appliance.cli.client import BrokerError, admin_client, asked
from appliance.cli.options import bootstrap_option
from appliance.cli.output import json_option, print_json, print_table, shown_bytes
from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from appliance.protocol.errors import ErrorCode

DESCRIBE_VERSION = 4
"""Since then a file system's room is told; brokers older than Apache Kafka 3.3 know less."""
TIMEOUT_S = 30.0


@click.group(name="log-dirs", short_help="Show log directories and what lies in them.")
def log_dirs() -> None:
    """Show the log directories of brokers."""


@log_dirs.command()
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; repeatable.")
@json_option
@bootstrap_option
def describe(*, topics: tuple[str, ...], as_json: bool, bootstrap: str) -> int:
    """Show which partitions lie in which log directory, and how far moves are. Ends with 1 when one has failed."""
    found = [
        _told(broker, result, topics) for broker, address in _brokers(bootstrap) for result in _ask(address)
    ]
    if as_json:
        print_json(found)
    else:
        _print(found)
    return 1 if any(each["error"] for each in found) else 0


def _brokers(bootstrap: str) -> list[tuple[int, str]]:
    client = admin_client(bootstrap)
    brokers = asked(lambda: client.list_topics(timeout=TIMEOUT_S)).brokers
    return sorted((identity, f"{each.host}:{each.port}") for identity, each in brokers.items())


def _ask(address: str) -> Iterable[DescribeLogDirsResult]:
    response = request(address, ApiKey.DESCRIBE_LOG_DIRS, DESCRIBE_VERSION, DescribeLogDirsRequest(None))
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
