"""Conditions that a person sets on records: a field and a value. Without I/O.

There is no language for them, because a language runs what a stranger writes on the server (docs/console.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.console.records import ReadRecord


@dataclass(frozen=True, slots=True)
class Conditions:
    """All must hold. An empty text sets none.

    Args:
        key: the key is exactly this text.
        contains: the value contains this text.
        header: `name`, or `name=value` with the whole value.
    """

    key: str = ""
    contains: str = ""
    header: str = ""

    @property
    def is_set(self) -> bool:
        """Whether there is a condition."""
        return bool(self.key or self.contains or self.header)

    def hold(self, found: ReadRecord) -> bool:
        """Return whether a record meets all conditions."""
        record = found.record
        if self.key and record.key != self.key.encode("utf-8", "surrogateescape"):
            return False
        if self.contains and self.contains.encode("utf-8", "surrogateescape") not in (record.value or b""):
            return False
        if self.header:
            name, equals, value = self.header.partition("=")
            wanted = value.encode("utf-8", "surrogateescape")
            return any(
                each == name and (not equals or (content or b"") == wanted)
                for each, content in record.headers
            )
        return True
