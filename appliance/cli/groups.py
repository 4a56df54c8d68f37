"""`appliance groups`: list, describe, lag, delete, reset-offsets, delete-offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import admin_client, answer_of, asked, refusal
from appliance.cli.confirming import require_yes, yes_option
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.group_lag import lags
from appliance.cli.group_offsets import delete_offsets
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table, say, shown_duration, shown_time
from appliance.cli.reset_offsets import reset_offsets
from appliance.cli.watch import watch_option, watched

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ages_option = click.option(
    "--ages/--no-ages",
    "with_ages",
    default=True,
    help="Read a record of each partition with a lag, to show how old it is.  [default: --ages]",
)
names_argument = click.argument("names", metavar="[GROUP...]", nargs=-1)
all_option = click.option("--all", "every", is_flag=True, help="All groups.")
isolation_option = click.option(
    "--read-committed", is_flag=True, help="Count lag to the last stable offset, not to the high watermark."
)


# As librdkafka names them, which calls the states of the new protocol `unknown`.
_STATES: Final = ("empty", "stable", "preparing-rebalancing", "completing-rebalancing", "dead", "unknown")
_OF_KAFKA: Final = {
    "preparingrebalance": "preparing-rebalancing",
    "completingrebalance": "completing-rebalancing",
}


def _states(_context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> frozenset[str]:
    """Return the states as `_plain` spells them.

    Raises:
        click.BadParameter: there is no such state.
    """
    found = set()
    for text in texts:
        state = _OF_KAFKA.get(text.lower(), text.lower())
        if state not in _STATES:
            raise click.BadParameter(f"{text!r} is not one of {', '.join(_STATES)}", param=parameter)
        found.add(state)
    return frozenset(found)


@click.group(cls=AliasedGroup, short_help="Show, delete and reset consumer groups.")
def groups() -> None:
    """Show consumer groups, their committed offsets and their lag; delete and reset them."""


groups.add_command(reset_offsets)
groups.add_command(delete_offsets)


@groups.command(name="list")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    callback=_states,
    help=f"Only groups in this state; repeatable. {', '.join(_STATES)}, as here or as Kafka spells them.",
)
@json_option
@watch_option
@client_options
def list_groups(*, states: frozenset[str], as_json: bool, watch_s: float | None, bootstrap: str) -> None:
    """List the groups."""
    client = admin_client(bootstrap)

    def show() -> None:
        found = _listed(client)
        rows = [
            {
                "group": each.group_id,
                "state": _plain(each.state),
                "type": _plain(each.type),
                "simple": each.is_simple_consumer_group,
            }
            for each in found
            if not states or _plain(each.state) in states
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
@names_argument
@all_option
@isolation_option
@ages_option
@json_option
@watch_option
@client_options
def describe(
    *,
    names: tuple[str, ...],
    every: bool,
    read_committed: bool,
    with_ages: bool,
    as_json: bool,
    watch_s: float | None,
    bootstrap: str,
) -> None:
    """Show state, members, their partitions, and the lag of each partition in records and in time."""
    client = admin_client(bootstrap)

    _require_names(names, every=every)

    def show() -> None:
        described = [
            _describe(client, name, bootstrap=bootstrap, read_committed=read_committed, with_ages=with_ages)
            for name in _chosen(client, names, every=every)
        ]
        if as_json:
            print_json(described)
        else:
            _print_described(described)

    watched(show, watch_s)


@groups.command()
@names_argument
@all_option
@isolation_option
@ages_option
@json_option
@watch_option
@client_options
def lag(
    *,
    names: tuple[str, ...],
    every: bool,
    read_committed: bool,
    with_ages: bool,
    as_json: bool,
    watch_s: float | None,
    bootstrap: str,
) -> None:
    """Show the lag of groups, by partition and in total.

    LAG counts records, STABLE LAG those up to the last stable offset. AGE says how long ago the record was written that
    the group reads next.
    """
    client = admin_client(bootstrap)

    _require_names(names, every=every)

    def show() -> None:
        told = [
            _lag(client, name, bootstrap=bootstrap, read_committed=read_committed, with_ages=with_ages)
            for name in _chosen(client, names, every=every)
        ]
        if as_json:
            print_json(told)
            return
        print_table(
            ("GROUP", "TOPIC", "PARTITION", *_LAG_HEADINGS),
            [
                (group["group"], p["topic"], p["partition"], *_lag_cells(p))
                for group in told
                for p in group["partitions"]
            ],
            right=("PARTITION", *_LAG_HEADINGS),
        )
        for group in told:
            say(f"{group['group']}: total lag {group['lag']}")

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


def _require_names(names: tuple[str, ...], *, every: bool) -> None:
    if bool(names) == every:
        raise click.UsageError("name groups, or give --all")


def _chosen(client: AdminClient, names: tuple[str, ...], *, every: bool) -> list[str]:
    return [each.group_id for each in _listed(client)] if every else list(dict.fromkeys(names))


def _listed(client: AdminClient) -> list[Any]:
    """The groups of all brokers, by name. Raises BrokerError where one of the brokers does not answer."""
    found = answer_of(client.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S))
    if found.errors:
        raise BrokerError(refusal(found.errors[0]))
    return sorted(found.valid, key=lambda each: each.group_id)


_LAG_HEADINGS: Final = ("COMMITTED", "END", "LAG", "STABLE LAG", "AGE", "LAST COMMIT")


def _lag_cells(partition: dict[str, Any]) -> tuple[object, ...]:
    """Cells under _LAG_HEADINGS."""
    age_ms, commit_ms = partition["age_ms"], partition["commit_time_ms"]
    return (
        partition["committed"],
        partition["end"],
        partition["lag"],
        partition["stable_lag"],
        None if age_ms is None else shown_duration(age_ms),
        None if commit_ms is None else shown_time(commit_ms),
    )


def _describe(
    client: AdminClient, name: str, *, bootstrap: str, read_committed: bool, with_ages: bool
) -> dict[str, Any]:
    """The keys are stable; `members` is empty for a group of simple consumers."""
    group = _asked_about(client, name)
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
    _add_ages(bootstrap, name, partitions, read_committed=read_committed, with_ages=with_ages)
    if state == "dead" and not partitions:
        raise _no_group(name)
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


def _asked_about(client: AdminClient, name: str) -> Any:
    pending = asked(lambda: client.describe_consumer_groups([name], request_timeout=REQUEST_TIMEOUT_S))
    return answer_of(pending[name])


def _no_group(name: str) -> BrokerError:
    return BrokerError(f"there is no group {name}")


def _add_ages(
    bootstrap: str, name: str, partitions: list[dict[str, Any]], *, read_committed: bool, with_ages: bool
) -> None:
    if with_ages:
        from appliance.cli.group_ages import add_ages  # its codec takes time to load, also for `--help`

        add_ages(bootstrap, name, partitions, read_committed=read_committed)
    else:
        for each in partitions:
            each.update(dict.fromkeys(("age_ms", "stable_age_ms", "commit_time_ms")))


def _lag(
    client: AdminClient, name: str, *, bootstrap: str, read_committed: bool, with_ages: bool
) -> dict[str, Any]:
    partitions = lags(client, name, read_committed=read_committed)
    if not partitions and _plain(_asked_about(client, name).state) == "dead":
        raise _no_group(name)  # a lag of 0 would hide a mistyped name
    _add_ages(bootstrap, name, partitions, read_committed=read_committed, with_ages=with_ages)
    return {
        "group": name,
        "lag": sum(each["lag"] or 0 for each in partitions),
        "stable_lag": sum(each["stable_lag"] or 0 for each in partitions),
        "age_ms": max((each["age_ms"] for each in partitions if each["age_ms"] is not None), default=None),
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
        say(", ".join(words))
        clients = {each["member"]: f"{each['client']} {each['host']}" for each in group["members"]}
        print_table(
            ("TOPIC", "PARTITION", *_LAG_HEADINGS, "MEMBER", "CLIENT"),
            [
                (
                    each["topic"],
                    each["partition"],
                    *_lag_cells(each),
                    each["member"],
                    clients.get(each["member"]),
                )
                for each in group["partitions"]
            ],
            right=("PARTITION", *_LAG_HEADINGS),
        )


def _assigned(member: Any) -> Iterable[Any]:
    assignment = member.assignment
    return assignment.topic_partitions if assignment is not None else ()


def _plain(value: Any) -> str | None:
    """`stable` for ConsumerGroupState.STABLE: as Kafka spells it, in lower case without the dashes of Python."""
    return None if value is None else value.name.lower().replace("_", "-")
