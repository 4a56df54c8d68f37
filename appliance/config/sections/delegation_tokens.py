"""Delegation tokens: how long they live, and the secret that their passwords follow from. Names are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import INT64_MAX, ConfigType
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

SECRET_OPTION: Final = "delegation.token.secret.key"


@dataclass(frozen=True, slots=True)
class DelegationTokenSettings:
    """Tokens that clients log in with in place of a password (docs/access.md)."""

    secret_key: str | None = option(
        None,
        SECRET_OPTION,
        type=ConfigType.PASSWORD,
        doc="Secret from which the appliance derives the passwords of delegation tokens. Without this "
        "secret, there are no delegation tokens. If you change the secret, nobody can log in with an "
        "existing token. Set this option in the configuration file, and do not let other users read the "
        "file.",
    )
    max_lifetime_ms: int = option(
        7 * 24 * 3600 * 1000,
        "delegation.token.max.lifetime.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        maximum=INT64_MAX,
        doc="Time after which a delegation token expires, even if it is renewed.",
    )
    expiry_time_ms: int = option(
        24 * 3600 * 1000,
        "delegation.token.expiry.time.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        maximum=INT64_MAX,
        doc="Time after which a delegation token expires if it is not renewed.",
    )
    expiry_check_interval_ms: int = option(
        3600 * 1000,
        "delegation.token.expiry.check.interval.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        maximum=INT64_MAX // 1_000_000,
        doc="Interval at which the controller removes expired delegation tokens.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.secret_key == "":
            raise ConfigurationError(f"{SECRET_OPTION}: must not be empty")

    @property
    def are_enabled(self) -> bool:
        """Whether there are delegation tokens."""
        return self.secret_key is not None
