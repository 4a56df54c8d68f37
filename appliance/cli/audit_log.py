"""`appliance audit-log`: the audit journal, straight off the disk."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from appliance.audit.entry import DENIED, DONE, EVENTS, FAILED, UNKNOWN, Entry, Resource, time_text
from appliance.audit.reader import EntryFilter, Reader
from appliance.cli.moments import moment
from appliance.cli.output import terminal_json
from appliance.errors import HostFault, OperatorFault
from appliance.journal_line import one_line

LOOK_S: Final = 0.25
SHOWN_RESOURCES: Final = 5


def _time(context: click.Context, parameter: click.Parameter, text: str | None) -> str:
    """Return a time as entries write it."""
    found_ms = moment(context, parameter, text)
    return "" if found_ms is None else time_text(found_ms)


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that both commands have."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Print each entry as a line of JSON."),
        click.option("--until", metavar="TIME", callback=_time, help="Only entries before this time."),
        click.option(
            "--since",
            metavar="TIME",
            callback=_time,
            help="Only entries from this time on: 2026-03-01T12:00:00Z, 2026-03-01 (UTC), or 30m (minutes ago).",
        ),
        click.option(
            "--resource",
            metavar="NAME",
            default="",
            help="Only entries about this resource; NAME* is a prefix.",
        ),
        click.option(
            "--api", metavar="API", multiple=True, help="Only this API, such as CreateTopics; repeatable."
        ),
        click.option(
            "--host", metavar="ADDRESS", multiple=True, help="Only clients of this address; repeatable."
        ),
        click.option(
            "--principal",
            metavar="TYPE:NAME",
            multiple=True,
            help="Only this principal, such as User:alice; repeatable.",
        ),
        click.option(
            "--result",
            type=click.Choice([DONE, DENIED, FAILED, UNKNOWN]),
            multiple=True,
            help="Only entries with this result; repeatable.",
        ),
        click.option(
            "--event",
            type=click.Choice(EVENTS),
            multiple=True,
            help="Only entries about this event; repeatable.",
        ),
        click.option(
            "--dir",
            "directory",
            type=click.Path(path_type=Path, file_okay=False),
            help="The journal's directory, if audit.log.dir names another one than DATA_DIR/audit.",
        ),
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path("data"),
            show_default=True,
            help="The data directory.",
        ),
    ):
        command = decorate(command)
    return command


@click.group("audit-log", short_help="Show the audit journal: who did what.")
def audit_log() -> None:
    """Show the audit journal: who did what, from where, and how it ended. The commands read the disk."""


@audit_log.command()
@_filters
def show(*, as_json: bool, data_dir: Path, directory: Path | None, **filters: Any) -> int:
    """Show all entries that the files still have, oldest first."""
    shown = _printer(as_json=as_json)
    reader, wanted = _reader(data_dir, directory), _wanted(**filters)
    for entry in _read(reader):
        if wanted.matches(entry):
            shown(entry)
    _tell_skipped(reader)
    return 0


@audit_log.command()
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=10, show_default=True, help="How many entries."
)
@click.option("-F", "--follow", is_flag=True, help="Wait for further entries, until Ctrl-C.")
@_filters
def tail(
    *, lines: int, follow: bool, as_json: bool, data_dir: Path, directory: Path | None, **filters: Any
) -> int:
    """Show the last entries."""
    shown = _printer(as_json=as_json)
    reader, wanted = _reader(data_dir, directory), _wanted(**filters)
    for entry in deque(filter(wanted.matches, _read(reader)), maxlen=lines):
        shown(entry)
    _tell_skipped(reader)
    while follow:
        sys.stdout.flush()
        time.sleep(LOOK_S)
        for entry in _read(reader):
            if wanted.matches(entry):
                shown(entry)
    return 0


def _reader(data_dir: Path, directory: Path | None) -> Reader:
    where = data_dir / "audit" if directory is None else directory
    try:
        is_there = where.is_dir()
    except PermissionError as error:
        raise OperatorFault(
            f"{where}: {error.strerror}: only the user of the appliance can read it"
        ) from None
    if not is_there:
        raise OperatorFault(
            f"{where}: there is no audit journal; audit.log.events says what is recorded, audit.log.dir where"
        )
    return Reader(where)


def _read(reader: Reader) -> Any:
    try:
        yield from reader.entries()
    except PermissionError as error:
        raise OperatorFault(
            f"{reader.directory}: {error.strerror}: only the user of the appliance can read it"
        ) from None
    except OSError as error:
        raise HostFault(f"{reader.directory}: {error.strerror}") from error


def _wanted(
    *,
    event: tuple[str, ...],
    result: tuple[str, ...],
    principal: tuple[str, ...],
    host: tuple[str, ...],
    api: tuple[str, ...],
    resource: str,
    since: str,
    until: str,
) -> EntryFilter:
    return EntryFilter(
        events=frozenset(event),
        results=frozenset(result),
        principals=frozenset(principal),
        hosts=frozenset(host),
        apis=frozenset(each.lower() for each in api),
        resource=resource,
        since=since,
        until=until,
    )


def _tell_skipped(reader: Reader) -> None:
    if reader.skipped:
        click.echo(f"{reader.skipped} lines are no entries, and were skipped", err=True)


def _printer(*, as_json: bool) -> Callable[[Entry], None]:
    def printed(entry: Entry) -> None:
        text = msgspec.json.encode(entry).decode() if as_json else text_of(entry)
        sys.stdout.write((terminal_json(text) if as_json and sys.stdout.isatty() else text) + "\n")

    return printed


def text_of(entry: Entry) -> str:
    """Return an entry in one line for people."""
    who = entry.principal or "unknown"
    if entry.host:
        who += f" from {entry.host}"
    parts = [entry.time, entry.event]
    if entry.event == "lost":
        parts.append(f"{entry.count} entries ({entry.process})")
        return one_line(" ".join(parts))
    if entry.event == "repeats":
        parts.append(f"{entry.count} more of {entry.of} by {who} in {entry.seconds} s")
        return one_line(" ".join(parts))
    parts += [entry.result, who, entry.api or f"{entry.mechanism} on {entry.listener}"]
    if entry.reason:
        parts.append(f"({entry.reason})")
    shown = [_shown(each) for each in entry.resources[:SHOWN_RESOURCES]]
    more = max(entry.count, len(entry.resources)) - len(shown)
    if more > 0:
        shown.append(f"and {more} more")
    text = " ".join(parts)
    return one_line(f"{text}: {'; '.join(shown)}" if shown else text)


def _shown(resource: Resource) -> str:
    text = f"{resource.type} {resource.name}"
    if resource.operation:
        text = f"{resource.operation} {text}"
    if resource.detail:
        text += f" ({', '.join(f'{name}={value}' for name, value in resource.detail.items())})"
    return f"{text} {resource.error}" if resource.error else text
