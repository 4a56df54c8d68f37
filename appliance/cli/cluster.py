"""`appliance cluster`: info, health and apis, as a broker of any Kafka cluster answers them."""

from __future__ import annotations

from typing import Any

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import admin_client, answer_of, asked
from appliance.cli.cluster_apis import apis
from appliance.cli.cluster_health import health
from appliance.cli.connecting import REQUEST_TIMEOUT_S
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.topic_names import is_internal


@click.group(cls=AliasedGroup, short_help="Show the cluster: its brokers and topics, and what is wrong.")
def cluster() -> None:
    """Show the cluster as one of its brokers describes it."""


cluster.add_command(health)
cluster.add_command(apis)


@cluster.command()
@json_option
@client_options
def info(*, as_json: bool, bootstrap: str) -> None:
    """Show cluster id, controller, brokers, and the number of topics and partitions."""
    client = admin_client(bootstrap)
    described = answer_of(client.describe_cluster(request_timeout=REQUEST_TIMEOUT_S))
    topics = asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics
    partitions = [each for topic in topics.values() for each in topic.partitions.values()]
    led: dict[int, int] = {}
    for each in partitions:
        led[each.leader] = led.get(each.leader, 0) + 1
    told: dict[str, Any] = {
        "cluster_id": described.cluster_id,
        "controller": described.controller.id if described.controller is not None else None,
        "brokers": [
            {
                "id": node.id,
                "address": f"{node.host}:{node.port}",
                "rack": node.rack,
                "leads": led.get(node.id, 0),
            }
            for node in sorted(described.nodes, key=lambda node: node.id)
        ],
        "topics": len(topics),
        "internal_topics": sum(map(is_internal, topics)),
        "partitions": len(partitions),
        "under_replicated_partitions": sum(len(each.isrs) < len(each.replicas) for each in partitions),
        "unavailable_partitions": sum(each.leader < 0 for each in partitions),
    }
    if as_json:
        print_json(told)
        return
    click.echo(f"cluster {told['cluster_id']}, controller {told['controller']}")
    click.echo(
        f"{told['topics']} topics ({told['internal_topics']} internal), {told['partitions']} partitions,"
        f" {told['under_replicated_partitions']} under-replicated,"
        f" {told['unavailable_partitions']} without a leader"
    )
    print_table(
        ("BROKER", "ADDRESS", "RACK", "LEADS"),
        [(each["id"], each["address"], each["rack"], each["leads"]) for each in told["brokers"]],
        right=("BROKER", "LEADS"),
    )
