"""URLs of collectors of OpenTelemetry, which options name: http(s), a host, perhaps a port and a path."""

from __future__ import annotations

from urllib.parse import urlsplit

from appliance.errors import ConfigurationError


def check_collector_url(option_name: str, url: str) -> None:
    """Raises ConfigurationError where the URL of a collector is neither empty nor http(s) with a host."""
    if not url:
        return
    try:
        found = urlsplit(url)
        _ = found.port
    except ValueError as fault:
        raise ConfigurationError(f"{option_name} = {url!r}: {fault}") from None
    if found.scheme not in ("http", "https") or not found.hostname:
        raise ConfigurationError(f"{option_name} = {url!r}: must be a URL such as http://127.0.0.1:4318")
    if found.query or found.fragment or found.username is not None:
        raise ConfigurationError(f"{option_name} = {url!r}: must have no user, query or fragment")


def collector_port(url: str) -> int | None:
    """Return the TCP port of a URL that `check_collector_url` takes; None if it is empty."""
    if not url:
        return None
    found = urlsplit(url)
    return found.port if found.port is not None else 443 if found.scheme == "https" else 80
