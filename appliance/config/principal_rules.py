"""`ssl.principal.mapping.rules`: from the name in a client certificate to the name of a principal.

Kafka's grammar (`SslPrincipalMapper`): rules are separated by commas, and the first that matches the whole name counts.

    DEFAULT                                the whole name
    RULE:pattern/replacement/[LU]          what `replacement` makes of each match of `pattern`; L or U: in lower or
                                           upper case; $1 is the first group; a slash in a pattern is written \\/

Patterns are RE2's regular expressions, which read those that are usual in such rules as Java's do. RE2 needs time that
grows linearly with the name, for every pattern. The name is the client's, so another engine could be held up for hours
in a network process. Lookaround and back references are refused, because RE2 has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from appliance.errors import ConfigurationError

DEFAULT: Final = "DEFAULT"
_OPTION: Final = "ssl.principal.mapping.rules"
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SEPARATOR: Final = re.compile(r"\s*(,\s*|$)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d)(\d*)|\$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One rule; without a pattern it is DEFAULT."""

    pattern: Any = None
    replacement: str = ""
    case: str = ""

    def name_of(self, distinguished_name: str) -> str | None:
        """Return the principal's name, None where the rule does not match."""
        pattern = self.pattern
        if pattern is None:
            return distinguished_name
        if pattern.fullmatch(distinguished_name) is None:
            return None
        name: str = pattern.sub(self._replaced, distinguished_name)
        if self.case:
            return name.lower() if self.case == "L" else name.upper()
        return name

    def _replaced(self, match: Any) -> str:
        """Write the replacement of one match; `$12` is group 1 and a 2 where there are fewer than 12 groups."""
        groups: int = match.re.groups

        def written(found: re.Match[str]) -> str:
            escaped, first, more = found[1], found[2], found[3]
            if escaped is not None:
                return str(escaped)
            if first is None or int(first) > groups:
                return str(found[0])
            number, used = int(first), 0
            while used < len(more) and number * 10 + int(more[used]) <= groups:
                number = number * 10 + int(more[used])
                used += 1
            return (match[number] or "") + str(more[used:])

        return _REFERENCE.sub(written, self.replacement)


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Return the rules of the option's text.

    Raises:
        ConfigurationError: a rule cannot be read; it is named.
    """
    rules: list[PrincipalRule] = []
    position = len(text) - len(text.lstrip())
    while position < len(text):
        rest = text[position:]
        found = _RULE.match(rest)
        if found is not None:
            rules.append(PrincipalRule(_compiled(found[1]), found[2], found[3]))
            position += found.end()
        elif rest.startswith(DEFAULT):
            rules.append(PrincipalRule())
            position += len(DEFAULT)
        elif not rest.startswith(","):  # an empty rule is ignored
            raise ConfigurationError(f"{_OPTION}: invalid rule: {rest[:100]!r}")
        separator = _SEPARATOR.match(text, position)
        if separator is None:
            raise ConfigurationError(f"{_OPTION}: invalid rule: {text[position:][:100]!r} follows a rule")
        position = separator.end()
    return tuple(rules)


def principal_name(rules: tuple[PrincipalRule, ...], distinguished_name: str) -> str | None:
    """Return the name that the first matching rule gives, None where no rule matches."""
    for rule in rules:
        name = rule.name_of(distinguished_name)
        if name is not None:
            return name
    return None


def _compiled(pattern: str) -> Any:
    # Loaded with the first pattern: most appliances have none.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it does not parse"
        raise ConfigurationError(f"{_OPTION}: invalid pattern {pattern[:100]!r}: {reason}") from None
