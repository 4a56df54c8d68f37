"""Which topics the arguments of a command mean: names as they are, or regular expressions with `--regex`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import click

from appliance.cli.connecting import BrokerError

INTERNAL_TOPICS: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__audit_log",
        "__audit",
        "__audit_state",
        "__trace",
        "__trace_state",
        "__observations",
    }
)
"""Topics in which a broker keeps its own state. Source: Kafka's `Topic.java`; from `__audit_log` on the appliance's."""
DELAYED_PREFIX: Final = "__delayed_"
"""Names of the appliance's internal topics for delayed records begin so."""


def is_internal(name: str) -> bool:
    """Return whether a broker keeps its own state in the topic."""
    return name in INTERNAL_TOPICS or name.startswith(DELAYED_PREFIX)


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
