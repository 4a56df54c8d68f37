"""Names that other tools have taught people, beside those of the commands: `topic`, `ls`, `rm`, `seek`."""

from __future__ import annotations

from typing import Final

import click

ALIASES: Final = {
    "acl": "acls",
    "config": "configs",
    "group": "groups",
    "ls": "list",
    "offset-delete": "delete-offsets",
    "partition": "partitions",
    "rm": "delete",
    "seek": "reset-offsets",
    "slot": "slots",
    "topic": "topics",
    "trim-prefix": "delete-records",
    "transaction": "transactions",
}
"""Alias → command. An alias is not listed in the help, and does nothing where there is no such command."""


class AliasedGroup(click.Group):
    """A group whose commands answer to their aliases, too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, ALIASES.get(cmd_name, ""))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        _, command, rest = super().resolve_command(ctx, args)
        # The usage line names the command, not the alias.
        return (command.name if command is not None else None), command, rest
