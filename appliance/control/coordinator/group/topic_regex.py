"""Subscriptions by regular expression: RE2's, as with Kafka, matched against whole topic names.

RE2 takes time linear in the name whatever the expression, so a client cannot hold the coordinator up with one; its
memory is bounded here. The library is loaded with the first expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from appliance.control.coordinator.group.group_book import shown
from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode

_REGEX_BYTES_MAX: Final = 1024
_MEMORY_BYTES_MAX: Final = 1 << 20
_CACHED: Final = 256


def check_regex(regex: str) -> None:
    """Raises RejectedRequest with INVALID_REGULAR_EXPRESSION unless it can be matched."""
    _compiled(regex)


def matching_topics(regex: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that match from their first to their last character, sorted."""
    compiled = _compiled(regex)
    return tuple(sorted(name for name in names if compiled.fullmatch(name)))


def fullmatcher(regex: str) -> Callable[[str], bool]:
    """Return what tells whether a whole text matches.

    Raises:
        RejectedRequest: INVALID_REGULAR_EXPRESSION.
    """
    compiled = _compiled(regex)
    return lambda text: compiled.fullmatch(text) is not None


@lru_cache(maxsize=_CACHED)
def _compiled(regex: str) -> Any:
    import re2

    if len(regex.encode()) > _REGEX_BYTES_MAX:
        raise _rejected(f"it is longer than {_REGEX_BYTES_MAX} bytes")
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it does not parse"
        raise _rejected(reason) from error


def _rejected(reason: str) -> RejectedRequest:
    return RejectedRequest(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex is not a valid regular expression: {shown(reason)}.",
    )
