"""Tokens of an identity provider: SASL/OAUTHBEARER. Names and defaults are Kafka's where Kafka has the same setting."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from appliance.config.declaration import INT64_MAX, ConfigType
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

URL_OPTION: Final = "sasl.oauthbearer.jwks.endpoint.url"


@dataclass(frozen=True, slots=True)
class OAuthBearerSettings:
    """Where the keys of the identity provider are, and which tokens count."""

    jwks_url: str | None = option(
        None,
        URL_OPTION,
        doc="URL of the identity provider's keys, in the form of a JSON Web Key Set: an `https://` URL, a "
        "`file:///` URL, or an `http://` URL of this host. For `http://` and another host, set insecure = "
        "true. The appliance connects to no other address, and follows no redirect.",
    )
    jwks_truststore_location: str | None = option(
        None,
        "sasl.oauthbearer.jwks.endpoint.truststore.location",
        doc="PEM file with the certificates of the authorities that sign the certificate of the `https://` URL. "
        "Without this option, the appliance trusts the authorities of the system.",
    )
    jwks_refresh_ms: int = option(
        3_600_000,
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1000,
        maximum=INT64_MAX // 1_000_000_000,
        doc="Time after which the appliance fetches the keys again. After a token with an unknown key, the "
        "appliance fetches the keys earlier, but at most every 10 seconds.",
    )
    jwks_retry_backoff_ms: int = option(
        100,
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=10,
        maximum=3_600_000,
        doc="Pause after the first failed attempt to fetch the keys. The pause doubles with each further "
        "failure.",
    )
    jwks_retry_backoff_max_ms: int = option(
        10_000,
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=10,
        maximum=3_600_000,
        doc="Longest pause between two failed attempts to fetch the keys.",
    )
    expected_audience: tuple[str, ...] = option(
        (),
        "sasl.oauthbearer.expected.audience",
        doc="Accepted audiences: a token must name at least one of them. If the option is empty, a token "
        "must not name an audience.",
    )
    expected_issuer: str | None = option(
        None,
        "sasl.oauthbearer.expected.issuer",
        doc="Issuer that a token must name. Without this option, the appliance does not check the issuer.",
    )
    clock_skew_s: int = option(
        30,
        "sasl.oauthbearer.clock.skew.seconds",
        unit="s",
        minimum=0,
        maximum=86_400,
        doc="Largest allowed difference between the clocks of this host and of the identity provider.",
    )
    sub_claim_name: str = option(
        "sub",
        "sasl.oauthbearer.sub.claim.name",
        doc="Claim of the token that contains the name of the principal. With the value `alice`, the "
        "principal is User:alice.",
    )
    scope_claim_name: str = option(
        "scope",
        "sasl.oauthbearer.scope.claim.name",
        doc="Claim of the token that contains the scopes. The appliance checks the form of this claim, and "
        "does not use its value.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.jwks_url is not None:
            _check_url(self.jwks_url)
            if self.jwks_truststore_location is not None and self.endpoint.scheme != "https":
                raise ConfigurationError(
                    "sasl.oauthbearer.jwks.endpoint.truststore.location: has no effect without an https:// URL"
                )
        if self.jwks_retry_backoff_max_ms < self.jwks_retry_backoff_ms:
            raise ConfigurationError(
                f"sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms = {self.jwks_retry_backoff_max_ms}: must not "
                f"be below sasl.oauthbearer.jwks.endpoint.retry.backoff.ms = {self.jwks_retry_backoff_ms}"
            )
        for name, value in (
            ("sasl.oauthbearer.sub.claim.name", self.sub_claim_name),
            ("sasl.oauthbearer.scope.claim.name", self.scope_claim_name),
        ):
            if not value.strip():
                raise ConfigurationError(f"{name}: must not be blank")

    @property
    def endpoint(self) -> SplitResult:
        """The parts of the URL; there is one."""
        assert self.jwks_url is not None
        return urlsplit(self.jwks_url)

    @property
    def file(self) -> str | None:
        """The path that a `file:` URL names; None for the other URLs."""
        parts = self.endpoint
        return unquote(parts.path) if parts.scheme == "file" else None

    @property
    def is_open_to_forgery(self) -> bool:
        """Whether the keys come from another host without encryption, so that somebody on the way can replace them."""
        if self.jwks_url is None or self.endpoint.scheme != "http":
            return False
        host = self.endpoint.hostname or ""
        try:
            return not ip_address(host).is_loopback
        except ValueError:
            return host != "localhost"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"{URL_OPTION} = {url[:200]!r}: {error}") from None
    if parts.scheme not in {"http", "https", "file"}:
        raise ConfigurationError(
            f"{URL_OPTION} = {url[:200]!r}: must begin with https://, file:/// or http://"
        )
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise ConfigurationError(
                f"{URL_OPTION} = {url[:200]!r}: a file needs an absolute path: file:///PATH"
            )
    elif not host:
        raise ConfigurationError(f"{URL_OPTION} = {url[:200]!r}: names no host")
    elif parts.username is not None or parts.fragment:
        raise ConfigurationError(f"{URL_OPTION}: must have no user name, password or fragment")
    if any(character <= " " or character == "\x7f" for character in url):
        raise ConfigurationError(
            f"{URL_OPTION} = {url[:200]!r}: must not contain spaces or control characters"
        )
