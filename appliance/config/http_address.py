"""Addresses of the appliance's own HTTP listeners: of the metrics page and of the console."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

from appliance.errors import ConfigurationError

_PORT_MAX: Final = 65535
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")
_LOCALHOST: Final = "localhost"


def parse_http_address(option: str, text: str, *, example_port: int) -> tuple[str, int]:
    """Return host, without brackets, and port of `HOST:PORT`.

    Raises:
        ConfigurationError: the text is none; the error names the option.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= _PORT_MAX:
        raise ConfigurationError(f"{option} = {text!r}: must be HOST:PORT, such as 127.0.0.1:{example_port}")
    return match["host"].strip("[]"), int(match["port"])


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach a listener on `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == _LOCALHOST
