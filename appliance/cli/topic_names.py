"""Which topics the arguments of a command mean: names as they are, or regular expressions with `--regex`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import click

from appliance.cli.connecting import BrokerError

CLUSTER_METADATA: Final = "__cluster_metadata"
"""The metadata log of a cluster of Apache Kafka's own. The appliance has none."""


def is_internal(name: str) -> bool:
    """Return whether a broker keeps its own state in the topic, the appliance's or Apache Kafka's."""
    from appliance import cluster  # it loads msgspec, which no `--help` needs

    return name == CLUSTER_METADATA or cluster.is_internal(name)


regex_option = click.option(
    "--regex",
    "-E",
    "is_regex",
    is_flag=True,
    help="Each TOPIC is a regular expression that must match a whole name; internal topics never match.",
)


def named_topics(texts: Sequence[str], existing: Iterable[str], *, is_regex: bool) -> list[str]:
    """The topics that `texts` name, each once. `existing` is looked at only for regular expressions.

    Raises:
        BrokerError: no topic matches an expression.
        click.UsageError: a text is no regular expression.
    """
    if not is_regex:
        return list(dict.fromkeys(texts))
    candidates = sorted(name for name in existing if not is_internal(name))
    found: dict[str, None] = {}
    for text in texts:
        pattern = compiled(text)
        matching = [name for name in candidates if pattern.fullmatch(name)]
        if not matching:
            raise BrokerError(f"no topic matches {text!r}")
        found.update(dict.fromkeys(matching))
    return list(found)


def compiled(text: str) -> re.Pattern[str]:
    """Raises click.UsageError where `text` is no regular expression."""
    try:
        return re.compile(text)
    except re.error as fault:
        raise click.UsageError(f"{text!r} is not a regular expression: {fault}") from None
