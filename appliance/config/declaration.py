"""What an option is: its name, type, unit, default, range and sentence, and how a text becomes its value.

Every option of the appliance is declared once. Its declaration parses the configuration file and the flags,
answers DescribeConfigs and writes docs/configuration.md. Names and types are Kafka's wherever Kafka has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, IntEnum
from pathlib import Path
from typing import Final

from appliance.errors import ConfigurationError

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

Value = bool | int | float | str | Path | tuple[str, ...] | None


class ConfigType(IntEnum):
    """Types as DescribeConfigs numbers them. Source: Kafka's `DescribeConfigsResponse.java`, ConfigType."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from. Source: Kafka's `DescribeConfigsResponse.java`, ConfigSource."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class Effect(Enum):
    """When a new value of an option takes effect."""

    AT_ONCE = "at once"
    AT_RESTART = "at restart"
    NONE = "no effect: stored and shown only"


@dataclass(frozen=True, slots=True)
class BrokerSynonym:
    """A broker-wide name for a topic setting; `factor` turns its unit into the topic setting's.

    `default` is the text Kafka reports for this name when nobody set it, None where Kafka has null.
    """

    name: str
    default: str | None
    unit: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One option. `synonyms` is filled for topic settings only, first one first in line."""

    name: str
    type: ConfigType
    default: Value
    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    special: tuple[int, ...] = ()
    effect: Effect = Effect.AT_RESTART
    synonyms: tuple[BrokerSynonym, ...] = ()

    def parse(self, raw: object, *, exact: bool = False) -> Value:
        """The value that `raw` stands for: a text, or what a TOML file holds.

        `exact` takes texts only, and no unit after a number: what Kafka takes over the wire.

        Raises:
            ConfigurationError: naming the option, what it got and what it wants.
        """
        value = self._read(raw, exact)
        self.check(value)
        return value

    def check(self, value: Value) -> None:
        """Refuses a value outside the declared range or choices.

        Raises:
            ConfigurationError: naming the option, the value and what is allowed.
        """
        if value is None:
            if self.default is not None:
                raise self._refusal(value)
        elif self.choices:
            chosen = value if isinstance(value, tuple) else (value,)
            if any(item not in self.choices for item in chosen):
                raise self._refusal(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            low, high = self.bounds()
            if value not in self.special and not (low <= value <= high):
                raise self._refusal(value)

    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest allowed number; the type's own limits where none is declared."""
        limit = {ConfigType.INT: INT32_MAX, ConfigType.SHORT: 2**15 - 1, ConfigType.DOUBLE: float("inf")}
        largest = limit.get(self.type, INT64_MAX)
        low = -largest - 1 if self.minimum is None else self.minimum
        return low, largest if self.maximum is None else self.maximum

    def allowed(self) -> str:
        """What the option takes, in words."""
        if self.choices:
            several = self.type is ConfigType.LIST
            return ("any of " if several else "one of ") + ", ".join(self.choices)
        if self.type is ConfigType.BOOLEAN:
            return "true or false"
        if self.type not in _NUMBERS:
            return {ConfigType.LIST: "a list, separated by commas"}.get(self.type, "text")
        kind = "a number" if self.type is ConfigType.DOUBLE else "a whole number"
        low, high = self.bounds()
        type_low, type_high = Declaration(name="", type=self.type, default=0, doc="").bounds()
        if low > type_low and high < type_high:
            kind += f" from {low} to {high}"
        elif low > type_low:
            kind += f" of at least {low}"
        elif high < type_high:
            kind += f" of at most {high}"
        if self.special:
            kind += " or " + ", ".join(map(str, self.special))
        return f"{kind} ({self.unit})" if self.unit else kind

    def _read(self, raw: object, exact: bool) -> Value:
        match self.type:
            case ConfigType.BOOLEAN:
                if isinstance(raw, bool) and not exact:
                    return raw
                if isinstance(raw, str) and raw.strip().lower() in {"true", "false"}:
                    return raw.strip().lower() == "true"
            case ConfigType.LIST:
                if isinstance(raw, list) and not exact and all(isinstance(item, str) for item in raw):
                    return tuple(raw)
                if isinstance(raw, str):
                    return tuple(item.strip() for item in raw.split(",")) if raw.strip() else ()
            case ConfigType.DOUBLE:
                return self._read_double(raw, exact)
            case number if number in _NUMBERS:
                return self._read_integer(raw, exact)
            case _:
                if isinstance(raw, str) and raw:
                    return Path(raw) if isinstance(self.default, Path) else raw
        raise self._refusal(raw)

    def _read_double(self, raw: object, exact: bool) -> float:
        if isinstance(raw, str) or (
            isinstance(raw, (int, float)) and not isinstance(raw, bool) and not exact
        ):
            try:
                return float(raw)
            except ValueError:
                pass
        raise self._refusal(raw)

    def _read_integer(self, raw: object, exact: bool) -> int:
        if isinstance(raw, int) and not isinstance(raw, bool) and not exact:
            return raw
        if isinstance(raw, str):
            if re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", raw):
                return int(raw)
            if not exact and (amount := amount_in_unit(raw, self.unit)) is not None:
                return amount
        raise self._refusal(raw)

    def _refusal(self, raw: object) -> ConfigurationError:
        if self.type is ConfigType.PASSWORD:
            return ConfigurationError(f"{self.name}: must be {self.allowed()}")  # without its value
        shown = ",".join(raw) if isinstance(raw, tuple) else raw
        return ConfigurationError(f"{self.name} = {str(shown)[:100]!r}: must be {self.allowed()}")


_NUMBERS: Final = frozenset({ConfigType.INT, ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE})

_MULTIPLES: Final[dict[str, dict[str, int]]] = {
    "bytes": {
        "B": 1,
        "kB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "TB": 10**12,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
        "TiB": 2**40,
    },
    "ms": {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000},
}


def amount_in_unit(text: str, unit: str) -> int | None:
    """`64 MiB` in bytes, `10 s` in milliseconds; None where `text` is no whole amount of `unit`."""
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]+)\s*", text)
    multiple = _MULTIPLES.get(unit, {}).get(found[2]) if found else None
    if found is None or multiple is None:
        return None
    amount = float(found[1]) * multiple if "." in found[1] else int(found[1]) * multiple
    return int(amount) if amount == int(amount) else None


def text_of(value: Value) -> str | None:
    """A value as Kafka writes it in DescribeConfigs."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def unknown_name(name: str, known: Iterable[str], *, kind: str = "option") -> ConfigurationError:
    """The refusal of a name nobody declared, with the nearest one that somebody did."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    # `segment.bytes` for `log.segment.bytes`: the difference of length hides what a reader sees at once.
    near = near or [other for other in known if other.endswith("." + name) or name.endswith("." + other)][:1]
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigurationError(f"{name[:100]}: no such {kind}{hint}")
