"""`appliance groups delete-offsets`: the committed offsets of some partitions go, the group stays (KIP-496)."""

from __future__ import annotations

from typing import Final

import click

from appliance.cli.client import admin_client
from appliance.cli.cluster_view import first_that_answers, refusal_of
from appliance.cli.confirming import require_yes, yes_option
from appliance.cli.connecting import BrokerError
from appliance.cli.group_lag import committed_offsets
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option
from appliance.cli.request import request
from appliance.cli.reset_offsets import chosen_partitions
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.find_coordinator import GROUP, FindCoordinatorRequest
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)

FIND_VERSION: Final = 4
DELETE_VERSION: Final = 0


@click.command(name="delete-offsets", short_help="Delete committed offsets of a group.")
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,...]",
    multiple=True,
    required=True,
    help="The partitions; repeatable.",
)
@yes_option
@json_option
@client_options
def delete_offsets(*, name: str, topics: tuple[str, ...], yes: bool, as_json: bool, bootstrap: str) -> int:
    """Delete the committed offsets of a group in topics that it does not read at present. The command asks for
    confirmation; without a terminal it requires --yes.
    """
    if not yes:
        require_yes("groups delete-offsets", f"Delete committed offsets of {name}?", names=topics)
    client = admin_client(bootstrap)
    partitions = chosen_partitions(client, topics, committed_offsets(client, name))
    wanted: dict[str, list[OffsetDeletePartition]] = {}
    for topic, number in partitions:
        wanted.setdefault(topic, []).append(OffsetDeletePartition(number))
    answer = request(
        _coordinator(first_that_answers(bootstrap), name),
        ApiKey.OFFSET_DELETE,
        DELETE_VERSION,
        OffsetDeleteRequest(
            name, tuple(OffsetDeleteTopic(topic, tuple(each)) for topic, each in wanted.items())
        ),
    )
    if answer.error_code:
        raise BrokerError(f"group {name}: {refusal_of(answer.error_code, None)}")
    outcomes = Outcomes(as_json=as_json)
    for topic in answer.topics:
        for each in topic.partitions:
            place = f"{topic.name}-{each.partition_index}"
            identity = {"group": name, "topic": topic.name, "partition": each.partition_index}
            if each.error_code:
                outcomes.refused(identity, place, refusal_of(each.error_code, None))
            else:
                outcomes.done(identity, "deleted", f"{name}: deleted the committed offset in {place}")
    return outcomes.finish()


def _coordinator(address: str, group: str) -> str:
    """Return `HOST:PORT` of the group's coordinator. Raises BrokerError."""
    body = FindCoordinatorRequest(group, GROUP, (group,))
    answer = request(address, ApiKey.FIND_COORDINATOR, FIND_VERSION, body, oldest=1)
    found = answer.coordinators[0] if answer.coordinators else answer
    if found.error_code:
        raise BrokerError(f"group {group}: {refusal_of(found.error_code, found.error_message)}")
    return f"{found.host}:{found.port}"
