"""`appliance dead-letters`: list, show, replay, purge (docs/retries.md)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.connecting import BrokerError
from appliance.cli.options import DURATION, client_options, duration_ms
from appliance.cli.output import json_option, plain, plain_lines, print_json, print_table
from appliance.cli.topic_client import ClientReader, ClientWriter
from appliance.views.dead_letters import DeadLetter, DeadLetterLog, Filter, Replay, text_of
from appliance.views.moments import utc_ms
from appliance.views.retries import Retries, retries_of

F = TypeVar("F", bound=Callable[..., Any])

LIST_MAX: Final = 1_000
PURGE_AT_ONCE: Final = 10_000
_SHOWN: Final = 60


@click.group(cls=AliasedGroup, short_help="Show, replay and purge records that a group could not process.")
def dead_letters() -> None:
    """Show, replay and purge records that a group could not process. See docs/retries.md."""


def _since(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a time in ms since 1970: `2h` ago, or 2026-01-31T12:00 (UTC)."""
    if text is None:
        return None
    if DURATION.fullmatch(text):
        ago_ms = duration_ms(context, parameter, text)
        return int(time.time() * 1000) - (ago_ms or 0)
    try:
        return utc_ms(text)
    except ValueError:
        raise click.BadParameter(
            f"{text}: must be a duration such as 2h, or a time such as 2026-01-31T12:00 (UTC)",
            param=parameter,
        ) from None


def filter_options(command: F) -> F:
    """The flags that choose dead letters. All of them must hold."""
    for decorate in (
        click.option(
            "--id", "ids", metavar="ID", multiple=True, help="Only this one, as `list` names it; repeatable."
        ),
        click.option(
            "--exception",
            metavar="TEXT",
            help="Only those whose exception contains TEXT, or its message does.",
        ),
        click.option(
            "--since",
            "since_ms",
            metavar="WHEN",
            callback=_since,
            help="Only those that died in the last 2h, or since 2026-01-31T12:00 (UTC).",
        ),
        click.option("--key", metavar="TEXT", help="Only those with this key."),
        click.option(
            "--header",
            "headers",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="Only those with this header; repeatable.",
        ),
    ):
        command = decorate(command)
    return command


def _filter(
    headers: tuple[str, ...],
    key: str | None,
    since_ms: int | None,
    exception: str | None,
    ids: tuple[str, ...],
) -> Filter:
    return Filter(ids, key, since_ms, exception, headers)


@contextmanager
def _retries(bootstrap: str, group: str, topic: str) -> Iterator[tuple[ClientReader, Retries]]:
    with closing(ClientReader(bootstrap)) as reader:
        yield reader, retries_of(reader, group, topic)


@dead_letters.command(name="list")
@click.argument("group", metavar="GROUP")
@click.argument("topic", metavar="TOPIC")
@filter_options
@click.option(
    "--count",
    "-n",
    "count_max",
    type=click.IntRange(min=1),
    default=LIST_MAX,
    show_default=True,
    help="Stop after this number.",
)
@json_option
@client_options
def list_letters(
    *, group: str, topic: str, count_max: int, as_json: bool, bootstrap: str, **filters: Any
) -> None:
    """List the dead letters of GROUP on TOPIC."""
    found = []
    for letter in _chosen(bootstrap, group, topic, filters):
        found.append(letter.as_json())
        if len(found) == count_max:
            break
    if as_json:
        print_json(found)
    elif found:
        print_table(
            ("ID", "DIED", "RECORD", "ATTEMPTS", "EXCEPTION", "MESSAGE", "KEY"),
            [
                (
                    each["id"],
                    each["died"],
                    each["record"],
                    each["attempts"],
                    each["exception"],
                    _short(each["message"]),
                    _short(each["key"]),
                )
                for each in found
            ],
            right=("ATTEMPTS",),
        )
    else:
        click.echo("no dead letters", err=True)


@dead_letters.command()
@click.argument("group", metavar="GROUP")
@click.argument("topic", metavar="TOPIC")
@filter_options
@json_option
@client_options
def show(*, group: str, topic: str, as_json: bool, bootstrap: str, **filters: Any) -> None:
    """Show dead letters with their value and all headers."""
    found = [
        {
            **letter.as_json(),
            "value": text_of(letter.value),
            "headers": [[name, text_of(value)] for name, value in letter.headers],
        }
        for letter in _chosen(bootstrap, group, topic, filters)
    ]
    if as_json:
        print_json(found)
        return
    for each in found:
        click.echo(plain(f"{each['id']}  {each['record']}  died {each['died']}  key {each['key']}"))
        for name, value in each["headers"]:
            click.echo(plain(f"  {name}: {value}"))
        click.echo(plain_lines(f"  {each['value']}"))
    if not found:
        click.echo("no dead letters", err=True)


@dead_letters.command()
@click.argument("group", metavar="GROUP")
@click.argument("topic", metavar="TOPIC")
@filter_options
@click.option("--dry-run", is_flag=True, help="Only say how many records would be moved.")
@json_option
@client_options
def replay(*, group: str, topic: str, dry_run: bool, as_json: bool, bootstrap: str, **filters: Any) -> None:
    """Move dead letters back to the group: each once, and with a count of failures that begins again."""
    wanted = _filter(**filters)
    with _retries(bootstrap, group, topic) as (reader, retries):
        if not retries.is_enabled:
            raise BrokerError(f"retries of the group {group!r} on {topic} are disabled; enable them first")
        writer = ClientWriter(bootstrap)
        log = DeadLetterLog(reader, retries.dead_letter_topic, writer)
        chosen = 0
        mover = Replay(log, retries.retry_topic, writer)
        for letter in log:
            if not wanted.chooses(letter):
                continue
            chosen += 1
            if not dry_run:
                mover.add(letter)
        if not dry_run:
            mover.flush()
            log.trim()
    _report("replayed", chosen, dry_run=dry_run, as_json=as_json)


@dead_letters.command()
@click.argument("group", metavar="GROUP")
@click.argument("topic", metavar="TOPIC")
@filter_options
@click.option("--dry-run", is_flag=True, help="Only say how many records would be purged.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
@client_options
def purge(
    *, group: str, topic: str, dry_run: bool, yes: bool, as_json: bool, bootstrap: str, **filters: Any
) -> None:
    """Remove dead letters. The command asks for confirmation; without a terminal it requires --yes."""
    wanted = _filter(**filters)
    with _retries(bootstrap, group, topic) as (reader, retries):
        if not dry_run and not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(
                    "dead-letters purge asks for confirmation; without a terminal give --yes"
                )
            click.confirm(f"Remove dead letters of {group} on {topic}?", abort=True, err=True)
        log = DeadLetterLog(reader, retries.dead_letter_topic, ClientWriter(bootstrap))
        chosen = 0
        batch: list[DeadLetter] = []
        for letter in log:
            if not wanted.chooses(letter):
                continue
            chosen += 1
            if not dry_run:
                batch.append(letter)
                if len(batch) == PURGE_AT_ONCE:
                    log.remove(batch)
                    batch.clear()
        if not dry_run:
            log.remove(batch)
            log.trim()
    _report("purged", chosen, dry_run=dry_run, as_json=as_json)


def _report(done: str, count: int, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({done: 0 if dry_run else count, "chosen": count, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would have {done} {count} dead letters")
    else:
        click.echo(f"{done} {count} dead letters")


def _chosen(bootstrap: str, group: str, topic: str, filters: dict[str, Any]) -> Iterator[DeadLetter]:
    wanted = _filter(**filters)
    with _retries(bootstrap, group, topic) as (reader, retries):
        log = DeadLetterLog(reader, retries.dead_letter_topic)
        yield from (letter for letter in log if wanted.chooses(letter))


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
