"""`appliance help`, `version` and `ls`: commands about the commands."""

from __future__ import annotations

import click

from appliance.build import build
from appliance.cli.output import json_option, print_json
from appliance.cli.program import program, version_text
from appliance.cli.topics import list_topics
from appliance.version import VERSION


@click.command(name="help", short_help="Show the help of a command.")
@click.argument("names", metavar="[COMMAND...]", nargs=-1)
@json_option
def show_help(*, names: tuple[str, ...], as_json: bool) -> None:
    """Show the help of a command, or of all commands."""
    command: click.Command = program
    context = click.Context(program, info_name="appliance", **program.context_settings)
    for name in names:
        found = command.get_command(context, name) if isinstance(command, click.Group) else None
        if found is None:
            raise click.UsageError(f"no such command: {' '.join(names)!r}")
        command = found
        context = click.Context(command, info_name=found.name, parent=context)
    if as_json:
        print_json({"command": " ".join(["appliance", *names]), "help": command.get_help(context)})
    else:
        click.echo(command.get_help(context))


@click.command(short_help="Show the version.")
@json_option
def version(*, as_json: bool) -> None:
    """Show the version and whether this build is compiled."""
    if as_json:
        print_json({"version": VERSION, "build": build()})
    else:
        click.echo(version_text())


ls = click.Command(
    "ls",
    callback=list_topics.callback,
    params=list_topics.params,
    help=list_topics.help,
    short_help="List the topics.",
)
"""`appliance ls`, for those who try it first."""
