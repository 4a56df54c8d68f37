"""Which mechanisms there are: a row for each, from its name to what makes its exchanges.

To add a mechanism: its exchange in a file of its own, a row in MECHANISMS, and its name in MECHANISMS of
`config/sections/sasl.py`. What it needs and is not there yet becomes a field of `Sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from appliance.clock import Clock
from appliance.cluster import DelegationToken, ScramCredential
from appliance.config.sections.oauthbearer import OAuthBearerSettings
from appliance.config.sections.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, SaslSettings
from appliance.sasl.delegation_tokens import TokenCredentials
from appliance.sasl.mechanism import Exchange
from appliance.sasl.oauthbearer import OAuthBearerExchange
from appliance.sasl.password_file import PasswordFile
from appliance.sasl.plain import PlainExchange
from appliance.sasl.scram import ScramExchange, ScramUsers
from appliance.sasl.token_validator import KeySource, TokenValidator

MakeExchange = Callable[[], Exchange]
"""Makes the exchange of one authentication."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What mechanisms are made from, once for each network process.

    Attributes:
        clock: of this process.
        complain: writes a line for the operator.
        scram_secret: from which the salts of users who do not exist are derived.
        scram_credentials: returns those of the current metadata image; the same object until one changes.
        oauthbearer: which tokens count.
        keys: of the identity provider; None if no listener has OAUTHBEARER.
        token_secret: `delegation.token.secret.key`; None where there are no delegation tokens.
        tokens: as `scram_credentials`, of delegation tokens.
    """

    settings: SaslSettings
    clock: Clock
    complain: Callable[[str], None]
    scram_secret: bytes
    scram_credentials: Callable[[], tuple[ScramCredential, ...]]
    oauthbearer: OAuthBearerSettings = field(default_factory=OAuthBearerSettings)
    keys: KeySource | None = None
    token_secret: str | None = None
    tokens: Callable[[], tuple[DelegationToken, ...]] = tuple


def _plain(sources: Sources) -> MakeExchange:
    file = PasswordFile(sources.settings.plain_users_file, sources.clock, sources.complain)
    return lambda: PlainExchange(file.passwords)


def _scram(mechanism: str) -> Callable[[Sources], MakeExchange]:
    def maker(sources: Sources) -> MakeExchange:
        find = ScramUsers(sources.scram_secret, sources.scram_credentials).find(mechanism)
        if sources.token_secret is None:
            return lambda: ScramExchange(mechanism, find)
        tokens = TokenCredentials(sources.token_secret, sources.tokens, sources.clock)
        return lambda: ScramExchange(mechanism, find, lambda token_id: tokens.find(mechanism, token_id))

    return maker


def _oauthbearer(sources: Sources) -> MakeExchange:
    assert sources.keys is not None
    validator = TokenValidator(sources.oauthbearer, sources.keys, sources.clock)
    return lambda: OAuthBearerExchange(validator)


MECHANISMS: Final[Mapping[str, Callable[[Sources], MakeExchange]]] = {
    PLAIN: _plain,
    SCRAM_SHA_256: _scram(SCRAM_SHA_256),
    SCRAM_SHA_512: _scram(SCRAM_SHA_512),
    OAUTHBEARER: _oauthbearer,
}
"""By name. The function is called once for each network process, for each mechanism that a listener has."""


def makers_of(names: Iterable[str], sources: Sources) -> dict[str, MakeExchange]:
    """Return what makes the exchanges of these mechanisms, by name, in their order."""
    return {name: MECHANISMS[name](sources) for name in dict.fromkeys(names)}
