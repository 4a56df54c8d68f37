"""A kind of line in the log of the appliance: its stable name, its text, and the names of its values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A kind of line.

    Args:
        name: stable, such as `flush-failed`.
        template: the text, with `%s` or `%d` for each value.
        names: the names of the values, in the order of the text, between spaces.
    """

    name: str
    template: str
    names: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the values."""
        return tuple(self.names.split())
