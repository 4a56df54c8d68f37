"""What a shell completes beside commands and flags: names of topics and groups, as the broker knows them.

A person waits for the answer, so it comes within a second or has no names. Nothing is printed if a broker is not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

TIMEOUT_S: Final = 1.0
NAMES_MAX: Final = 500
_PLAIN: Final = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*")
"""Names that are completed. Clients choose names of groups, and a shell would run what is in `$(…)` or behind `;`."""


def complete_names(command: click.Command) -> None:
    """Have the parameters of a command, and of those below it, completed that name a topic or a group."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            complete_names(below)
    for parameter in command.params:
        if (names := _names_for(parameter)) is not None:
            parameter._custom_shell_complete = _completing(names)


def is_plain(name: str) -> bool:
    """Whether a shell takes a name as one word that is no flag."""
    return _PLAIN.fullmatch(name) is not None


def _names_for(parameter: click.Parameter) -> Callable[[str], Iterable[str]] | None:
    shown = (parameter.metavar or "").lstrip("[")
    name = parameter.name or ""
    if shown.startswith("TOPIC") or name in {"topic", "topics"}:
        return _topics
    if shown.startswith("GROUP") or name in {"group", "groups"}:
        return _groups
    return None


def _completing(names: Callable[[str], Iterable[str]]) -> Any:
    def complete(
        context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from appliance.cli.client import bootstrap_of
        from appliance.cli.options import DEFAULT_BOOTSTRAP
        from appliance.errors import ApplianceError

        try:
            with context.scope(cleanup=False):
                address = bootstrap_of(str(context.params.get("bootstrap") or DEFAULT_BOOTSTRAP))
                found = sorted(
                    each
                    for each in names(address.split(",")[0])
                    if each.startswith(incomplete) and is_plain(each)
                )
        except (ApplianceError, OSError, click.ClickException):
            return []
        return [CompletionItem(name) for name in found if incomplete or not name.startswith("__")][:NAMES_MAX]

    return complete


def _topics(address: str) -> Iterable[str]:
    from appliance.cli.request import request
    from appliance.protocol.api_versions import ApiKey
    from appliance.protocol.apis.metadata import MetadataRequest

    body = MetadataRequest(None, allow_auto_topic_creation=False)
    answer = request(address, ApiKey.METADATA, 12, body, oldest=4, timeout_s=TIMEOUT_S)
    return [topic.name for topic in answer.topics if topic.name]


def _groups(address: str) -> Iterable[str]:
    from appliance.cli.group_names import group_names

    return group_names(address, timeout_s=TIMEOUT_S)
