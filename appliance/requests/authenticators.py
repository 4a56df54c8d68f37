"""The SASL mechanisms of each listener, for one network process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.clock import Clock
from appliance.config import Settings
from appliance.requests.authentication import Authentication
from appliance.requests.topic_routes import TopicRoutes
from appliance.sasl.registry import MakeExchange, Sources, makers_of
from appliance.sasl.salt_secret import read_salt_secret
from appliance.sasl.token_validator import KeySource


class Authenticators:
    """Begins the authentications of clients.

    Args:
        routes: of which the metadata image is taken, with the credentials of SCRAM.
        complain: writes a line for the operator.
        keys: of the identity provider; None if no listener has OAUTHBEARER.
    """

    __slots__ = ("_clock", "_makers", "_max_reauth_ms", "_telemetry")

    def __init__(
        self,
        settings: Settings,
        routes: TopicRoutes,
        clock: Clock,
        complain: Callable[[str], None],
        *,
        keys: KeySource | None = None,
    ) -> None:
        self._clock = clock
        self._max_reauth_ms = settings.sasl.max_reauth_ms
        sources = Sources(
            settings.sasl,
            clock,
            complain,
            read_salt_secret(settings.data_dir, complain),
            lambda: () if routes.image is None else routes.image.scram,
            settings.oauthbearer,
            keys,
            settings.delegation_tokens.secret_key,
            lambda: () if routes.image is None else routes.image.tokens,
        )
        self._telemetry = settings.metrics.takes_telemetry
        names = {
            each.name: settings.sasl.mechanisms_of(each.name) for each in settings.listeners if each.is_sasl
        }
        makers = makers_of((name for some in names.values() for name in some), sources)
        self._makers = {listener: {name: makers[name] for name in some} for listener, some in names.items()}

    def begin(self, listener: str) -> Authentication:
        """Return the conversation with a client that has come to a listener."""
        return Authentication(
            self._makers[listener],
            self._clock,
            max_reauth_ms=self._max_reauth_ms,
            telemetry=self._telemetry,
        )

    def makers(self, listener: str) -> Mapping[str, MakeExchange]:
        """Return the mechanisms of a listener."""
        return self._makers[listener]
