"""`appliance groups`: list, describe, lag, delete, reset-offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import admin_client, answer_of, asked, refusal
from appliance.cli.confirming import require_yes, yes_option
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.group_lag import lags
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.reset_offsets import reset_offsets
from appliance.cli.watch import watch_option, watched

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

isolation_option = click.option(
    "--read-committed", is_flag=True, help="Count lag to the last stable offset, not to the high watermark."
)


@click.group(cls=AliasedGroup, short_help="Show, delete and reset consumer groups.")
def groups() -> None:
    """Show consumer groups, their committed offsets and their lag; delete and reset them."""


groups.add_command(reset_offsets)


@groups.command(name="list")
@click.option(
    "--state", "states", metavar="STATE", multiple=True, help="Only groups in this state; repeatable."
)
@json_option
@watch_option
@client_options
def list_groups(*, states: tuple[str, ...], as_json: bool, watch_s: float | None, bootstrap: str) -> None:
    """List the groups."""
    client = admin_client(bootstrap)

    def show() -> None:
        found = answer_of(client.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S))
        if found.errors:
            raise BrokerError(refusal(found.errors[0]))
        rows = [
            {
                "group": each.group_id,
                "state": _plain(each.state),
                "type": _plain(each.type),
                "simple": each.is_simple_consumer_group,
            }
            for each in sorted(found.valid, key=lambda each: each.group_id)
            if not states or _plain(each.state) in {state.lower() for state in states}
        ]
        if as_json:
            print_json(rows)
        elif rows:
            print_table(
                ("GROUP", "STATE", "TYPE"), [(row["group"], row["state"], row["type"]) for row in rows]
            )
        else:
            click.echo("no groups", err=True)

    watched(show, watch_s)


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@isolation_option
@json_option
@watch_option
@client_options
def describe(
    *, names: tuple[str, ...], read_committed: bool, as_json: bool, watch_s: float | None, bootstrap: str
) -> None:
    """Show state, members, their partitions, and the lag of each partition."""
    client = admin_client(bootstrap)

    def show() -> None:
        described = [_describe(client, name, read_committed) for name in dict.fromkeys(names)]
        if as_json:
            print_json(described)
        else:
            _print_described(described)

    watched(show, watch_s)


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@isolation_option
@json_option
@watch_option
@client_options
def lag(
    *, names: tuple[str, ...], read_committed: bool, as_json: bool, watch_s: float | None, bootstrap: str
) -> None:
    """Show the lag of groups, by partition and in total."""
    client = admin_client(bootstrap)

    def show() -> None:
        told = [_lag(client, name, read_committed) for name in dict.fromkeys(names)]
        if as_json:
            print_json(told)
            return
        print_table(
            ("GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG"),
            [
                (group["group"], p["topic"], p["partition"], p["committed"], p["end"], p["lag"])
                for group in told
                for p in group["partitions"]
            ],
            right=("PARTITION", "COMMITTED", "END", "LAG"),
        )
        for group in told:
            click.echo(f"{group['group']}: total lag {group['lag']}")

    watched(show, watch_s)


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@yes_option
@json_option
@client_options
def delete(*, names: tuple[str, ...], yes: bool, as_json: bool, bootstrap: str) -> int:
    """Delete groups without members, and their committed offsets. The command asks for confirmation; without a
    terminal it requires --yes.
    """
    if not yes:
        what = "this group and its" if len(names) == 1 else f"these {len(names)} groups and their"
        require_yes("groups delete", f"Delete {what} committed offsets?", names=names)
    client = admin_client(bootstrap)
    pending = asked(
        lambda: client.delete_consumer_groups(list(dict.fromkeys(names)), request_timeout=REQUEST_TIMEOUT_S)
    )
    outcomes = Outcomes(as_json=as_json)
    for name, future in pending.items():
        try:
            answer_of(future)
        except BrokerError as fault:
            outcomes.refused({"group": name}, name, fault)
        else:
            outcomes.done({"group": name}, "deleted", f"deleted {name}")
    return outcomes.finish()


def _describe(client: AdminClient, name: str, read_committed: bool) -> dict[str, Any]:
    """The keys are stable; `members` is empty for a group of simple consumers."""
    pending = asked(lambda: client.describe_consumer_groups([name], request_timeout=REQUEST_TIMEOUT_S))
    group = answer_of(pending[name])
    state = _plain(group.state)
    owners: dict[tuple[str, int], str] = {}
    members = []
    for member in sorted(group.members, key=lambda each: each.member_id):
        assigned = sorted((p.topic, p.partition) for p in _assigned(member))
        owners.update(dict.fromkeys(assigned, member.member_id))
        members.append(
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": [{"topic": topic, "partition": number} for topic, number in assigned],
            }
        )
    partitions = lags(client, name, owners, read_committed=read_committed)
    if state == "dead" and not partitions:
        raise BrokerError(f"there is no group {name}")
    return {
        "group": name,
        "state": state,
        "type": _plain(getattr(group, "type", None)),
        "assignor": group.partition_assignor or None,
        "coordinator": group.coordinator.id if group.coordinator else None,
        "members": members,
        "partitions": [
            {**each, "member": owners.get((each["topic"], each["partition"]))} for each in partitions
        ],
    }


def _lag(client: AdminClient, name: str, read_committed: bool) -> dict[str, Any]:
    partitions = lags(client, name, read_committed=read_committed)
    return {
        "group": name,
        "lag": sum(each["lag"] or 0 for each in partitions),
        "partitions": partitions,
    }


def _print_described(described: list[dict[str, Any]]) -> None:
    for number, group in enumerate(described):
        if number:
            click.echo()
        count = len(group["members"])
        words = [
            f"{group['group']}  {group['state']}",
            f"{count} member{'' if count == 1 else 's'}",
            *([f"assignor {group['assignor']}"] if group["assignor"] else []),
            *([f"coordinator {group['coordinator']}"] if group["coordinator"] is not None else []),
        ]
        click.echo(", ".join(words))
        clients = {each["member"]: f"{each['client']} {each['host']}" for each in group["members"]}
        print_table(
            ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT"),
            [
                (
                    each["topic"],
                    each["partition"],
                    each["committed"],
                    each["end"],
                    each["lag"],
                    each["member"],
                    clients.get(each["member"]),
                )
                for each in group["partitions"]
            ],
            right=("PARTITION", "COMMITTED", "END", "LAG"),
        )


def _assigned(member: Any) -> Iterable[Any]:
    assignment = member.assignment
    return assignment.topic_partitions if assignment is not None else ()


def _plain(value: Any) -> str | None:
    """`stable` for ConsumerGroupState.STABLE: as Kafka spells it, in lower case without the dashes of Python."""
    return None if value is None else value.name.lower().replace("_", "-")
