"""`appliance cluster health`: what is wrong with any Kafka cluster; the exit code is 1 if anything is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from appliance.cli.client import admin_client, asked
from appliance.cli.cluster_view import ClusterView, PartitionView, cluster_view, first_that_answers
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, say
from appliance.cli.request import TooOld, request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_log_dirs import UNKNOWN_BYTES, DescribeLogDirsRequest
from appliance.protocol.errors import ErrorCode

NAMES_MAX: Final = 5
LOG_DIRS_VERSION: Final = 4
LOG_DIRS_OLDEST: Final = 1
"""Apache Kafka 2.0. Since version 4 (3.3) a broker tells the free space."""
FULL_SHARE: Final = 0.05
"""A log directory with less free room than this part of its file system is nearly full."""
MIN_ISR: Final = "min.insync.replicas"
TOPICS_MAX: Final = 500
"""Topics with missing replicas whose settings are read; the partitions of any more count as under-replicated only."""


@click.command()
@json_option
@client_options
def health(*, as_json: bool, bootstrap: str) -> int:
    """Show what is wrong: brokers, partitions and log directories. The exit code is 1 if anything is."""
    told = _health(bootstrap)
    if as_json:
        print_json(told)
    else:
        _print(told)
    return 0 if told["healthy"] else 1


def _health(bootstrap: str) -> dict[str, Any]:
    """The keys are stable."""
    view = cluster_view(first_that_answers(bootstrap))
    log_dir_problems, log_dir_notes = _of_log_dirs(view)
    problems = [*_of_brokers(view), *_of_partitions(view, _min_isr(bootstrap, view)), *log_dir_problems]
    return {
        "healthy": not problems,
        "brokers": sum(not each.fenced for each in view.slots),
        "partitions": len(view.partitions),
        "problems": problems,
        "notes": [*_notes(view), *log_dir_notes],
    }


def _problem(kind: str, text: str, names: Iterable[str]) -> dict[str, Any]:
    named = list(names)
    return {"kind": kind, "text": text, "count": len(named), "examples": named[:NAMES_MAX]}


def _found(kind: str, text: str, names: Sequence[str]) -> list[dict[str, Any]]:
    return [_problem(kind, text, names)] if names else []


def _of_brokers(view: ClusterView) -> list[dict[str, Any]]:
    return _found(
        "broker-down",
        "brokers that are stopped or gone",
        [
            f"{each.slot} ({each.address})" if each.host else str(each.slot)
            for each in view.slots
            if each.fenced
        ],
    )


def _of_partitions(view: ClusterView, min_isr: dict[str, int]) -> list[dict[str, Any]]:
    led = [each for each in view.partitions if each.leader is not None]
    return [
        *_found(
            "no-leader",
            "partitions without a leader",
            [str(each) for each in view.partitions if each.leader is None],
        ),
        *_found(
            "under-min-isr",
            f"partitions with fewer in-sync replicas than {MIN_ISR}, which refuse acks=all",
            [str(each) for each in led if len(each.isr) < min_isr.get(each.topic, 0)],
        ),
        *_found(
            "under-replicated",
            "partitions with replicas that are not in sync",
            [f"{each} (in sync: {','.join(map(str, each.isr))})" for each in led if each.is_under_replicated],
        ),
    ]


def _min_isr(bootstrap: str, view: ClusterView) -> dict[str, int]:
    """Return the smallest ISR that writes need, by topic, for those with missing replicas."""
    topics = sorted({each.topic for each in view.partitions if each.is_under_replicated})[:TOPICS_MAX]
    if not topics:
        return {}
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    client = admin_client(bootstrap)
    resources = [ConfigResource(ResourceType.TOPIC, each) for each in topics]
    pending = asked(lambda: client.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S))
    found = {}
    for resource, future in pending.items():
        try:
            found[resource.name] = int(future.result(timeout=REQUEST_TIMEOUT_S)[MIN_ISR].value)
        except (KafkaException, TimeoutError, KeyError, ValueError):
            continue  # the user may not read its settings; the others are shown
    return found


def _of_log_dirs(view: ClusterView) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return problems and notes."""
    failed, full, silent, untold, unsized = [], [], [], [], []
    for broker in view.slots:
        if broker.fenced:
            continue
        try:
            answer = request(
                broker.address,
                ApiKey.DESCRIBE_LOG_DIRS,
                LOG_DIRS_VERSION,
                DescribeLogDirsRequest(()),
                oldest=LOG_DIRS_OLDEST,
            )
        except TooOld as fault:
            untold.append(f"{broker.slot}: {fault}")
            continue
        except BrokerError as fault:
            silent.append(f"{broker.slot}: {fault}")
            continue
        if answer.error_code:
            untold.append(f"{broker.slot}: {ErrorCode(answer.error_code).name}")
        elif not answer.results:  # before version 3 that is how a broker refuses
            untold.append(f"{broker.slot}: it lists none, perhaps because this user may not see them")
        if any(each.total_bytes == UNKNOWN_BYTES and not each.error_code for each in answer.results):
            unsized.append(f"{broker.slot}")
        for each in answer.results:
            where = f"{each.log_dir} of {broker.slot}"
            if each.error_code:
                failed.append(f"{where}: {ErrorCode(each.error_code).name}")
            elif 0 <= each.usable_bytes < each.total_bytes * FULL_SHARE:
                full.append(f"{where}: {each.usable_bytes / max(1, each.total_bytes):.1%} free")
    return [
        *_found("broker-silent", "brokers that do not answer", silent),
        *_found("log-dir-failed", "log directories that have failed", failed),
        *_found("log-dir-full", "log directories that are nearly full", full),
    ], [
        *_found("log-dirs-unknown", "brokers that do not tell about their log directories", untold),
        *_found(
            "free-space-unknown",
            "brokers that do not tell the free space of log directories, as Apache Kafka before 3.3",
            unsized,
        ),
    ]


def _notes(view: ClusterView) -> list[dict[str, Any]]:
    """What is no problem, but good to know."""

    def is_moving(each: PartitionView) -> bool:
        return bool(each.adding or each.removing)

    return [
        *_found(
            "moving",
            "partitions that move to other brokers",
            [str(p) for p in view.partitions if is_moving(p)],
        ),
        *_found(
            "other-leader",
            "partitions that another broker leads than the preferred one",
            [
                str(each)
                for each in view.partitions
                if each.leader is not None and each.replicas and each.leader != each.replicas[0]
            ],
        ),
    ]


def _print(told: dict[str, Any]) -> None:
    brokers, partitions = told["brokers"], told["partitions"]
    word = "healthy" if told["healthy"] else "not healthy"
    click.echo(
        f"{word}: {brokers} broker{'' if brokers == 1 else 's'}, {partitions} partition{'' if partitions == 1 else 's'}"
    )
    for title, found in (("", told["problems"]), ("note: ", told["notes"])):
        for each in found:
            examples = ", ".join(each["examples"])
            more = f" and {each['count'] - NAMES_MAX} more" if each["count"] > NAMES_MAX else ""
            say(f"{title}{each['count']} {each['text']}: {examples}{more}")
