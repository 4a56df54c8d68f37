"""A field of a section as an option: declares it, finds it again, checks its value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from appliance.config.declaration import ConfigType, Declaration, Effect, Value

T = TypeVar("T")

_DECLARATION: Final = "declaration"


def option(
    default: T,
    name: str,
    *,
    doc: str,
    type: ConfigType | None = None,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    special: tuple[int, ...] = (),
    effect: Effect = Effect.AT_RESTART,
) -> T:
    """Declares the field it is assigned to; its type follows from the default, an int being Kafka's INT."""
    assert default is None or isinstance(default, (bool, int, str, Path, tuple))
    known = {bool: ConfigType.BOOLEAN, int: ConfigType.INT, tuple: ConfigType.LIST}
    inferred = known.get(default.__class__, ConfigType.STRING)
    declaration = Declaration(
        name=name,
        type=type or inferred,
        default=default,
        doc=doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        special=special,
        effect=effect,
    )
    # No line of a log shows a password.
    declared: T = field(
        default=default,
        repr=declaration.type is not ConfigType.PASSWORD,
        metadata={_DECLARATION: declaration},
    )
    return declared


def declared_fields(section: type[Any] | Any) -> Iterator[tuple[str, Declaration]]:
    """Field name and declaration of every option of a section, in the order of the source."""
    for each in fields(section):
        if _DECLARATION in each.metadata:
            yield each.name, each.metadata[_DECLARATION]


def check_fields(section: Any) -> None:
    """Refuses a section with a value outside its declared range.

    Raises:
        ConfigurationError: it names the option.
    """
    for name, declaration in declared_fields(section):
        value: Value = getattr(section, name)
        declaration.check(value)
