"""Which mechanisms there are: a row for each, from its name to what makes its exchanges.

To add a mechanism: its exchange in a file of its own, a row in MECHANISMS, and its name in `sasl.enabled.mechanisms`
(`config/sections/sasl.py`). What it needs and is not there yet becomes a field of `Sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from appliance.clock import Clock
from appliance.config.sections.sasl import SaslSettings
from appliance.sasl.mechanism import Exchange

MakeExchange = Callable[[], Exchange]
"""Makes the exchange of one authentication."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What mechanisms are made from: once for each network process."""

    settings: SaslSettings
    clock: Clock


MECHANISMS: Final[Mapping[str, Callable[[Sources], MakeExchange]]] = {}
"""By name. The function is called once for each network process, for each mechanism that is enabled."""


def makers_of(names: Iterable[str], sources: Sources) -> dict[str, MakeExchange]:
    """Return what makes the exchanges of these mechanisms, by name, in their order."""
    return {name: MECHANISMS[name](sources) for name in names}
