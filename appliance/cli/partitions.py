"""`appliance partitions`: list, elect."""

from __future__ import annotations

from typing import Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.cluster_view import (
    ClusterView,
    PartitionView,
    cluster_view,
    first_that_answers,
    named_partitions,
    refusal_of,
    shown_slots,
)
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.elect_leaders import PREFERRED, UNCLEAN, ElectLeadersRequest, TopicPartitions
from appliance.protocol.errors import ErrorCode

ELECT_VERSION: Final = 2


@click.group(cls=AliasedGroup, short_help="Show partitions and their leaders; elect leaders.")
def partitions() -> None:
    """Show partitions, their leaders and in-sync replicas; elect leaders."""


@partitions.command(name="list")
@click.argument("topics", metavar="[TOPIC...]", nargs=-1)
@click.option("--under-replicated", is_flag=True, help="Only partitions with a replica that is not in sync.")
@click.option("--unavailable", is_flag=True, help="Only partitions without a leader.")
@json_option
@client_options
def list_partitions(
    *, topics: tuple[str, ...], under_replicated: bool, unavailable: bool, as_json: bool, bootstrap: str
) -> None:
    """List partitions with leader, replicas and in-sync replicas."""
    view = cluster_view(first_that_answers(bootstrap))
    found = _of_topics(view, topics)
    if under_replicated or unavailable:
        found = [
            each
            for each in found
            if (under_replicated and each.is_under_replicated) or (unavailable and each.leader is None)
        ]
    if as_json:
        print_json([each.as_json() for each in found])
    elif found:
        print_table(
            ("TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "STATE"),
            [
                (
                    each.topic,
                    each.partition,
                    each.leader,
                    each.leader_epoch,
                    shown_slots(each.replicas),
                    shown_slots(each.isr),
                    _state(each),
                )
                for each in found
            ],
            right=("PARTITION", "LEADER", "EPOCH"),
        )
    else:
        click.echo("no partitions", err=True)


@partitions.command()
@click.argument("wanted", metavar="[TOPIC[:PARTITION,...]...]", nargs=-1)
@click.option(
    "--all", "all_partitions", is_flag=True, help="All partitions that are not led by their preferred leader."
)
@click.option(
    "--unclean",
    is_flag=True,
    help="If a partition has no leader, elect a replica that was not in sync. This loses acknowledged records.",
)
@json_option
@client_options
def elect(
    *, wanted: tuple[str, ...], all_partitions: bool, unclean: bool, as_json: bool, bootstrap: str
) -> int:
    """Elect the preferred leaders: the first replica of each partition."""
    if bool(wanted) == all_partitions:
        raise click.UsageError("name partitions, or give --all")
    address = first_that_answers(bootstrap)
    asked = None
    if wanted:
        topics: dict[str, list[int]] = {}
        for each in named_partitions(cluster_view(address), wanted):
            topics.setdefault(each.topic, []).append(each.partition)
        asked = tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in topics.items())
    body = ElectLeadersRequest(asked, election_type=UNCLEAN if unclean else PREFERRED)
    answer = request(address, ApiKey.ELECT_LEADERS, ELECT_VERSION, body, oldest=1)
    if answer.error_code:
        raise BrokerError(f"elections: {refusal_of(answer.error_code, None)}")
    outcomes = Outcomes(as_json=as_json)
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            name = f"{topic.topic}-{each.partition_id}"
            identity = {"topic": topic.topic, "partition": each.partition_id}
            if each.error_code == ErrorCode.ELECTION_NOT_NEEDED:
                outcomes.done(identity, "not_needed", f"{name}: its preferred leader leads already")
            elif each.error_code:
                outcomes.refused(identity, name, refusal_of(each.error_code, each.error_message))
            else:
                outcomes.done(identity, "elected", f"elected a leader of {name}")
    return outcomes.finish()


def _of_topics(view: ClusterView, topics: tuple[str, ...]) -> list[PartitionView]:
    if not topics:
        return list(view.partitions)
    return [each for topic in dict.fromkeys(topics) for each in view.of_topic(topic)]


def _state(partition: PartitionView) -> str:
    said = []
    if partition.leader is None:
        said.append("unavailable")
    if partition.is_under_replicated:
        said.append("under-replicated")
    if partition.adding:
        said.append(f"adding {shown_slots(partition.adding)}")
    if partition.removing:
        said.append(f"removing {shown_slots(partition.removing)}")
    return ", ".join(said) or "ok"
