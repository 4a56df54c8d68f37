"""One spelling for each IP address, so that a rule and a client that name the same address compare equal.

    10.0.0.1                       as it is
    ::ffff:10.0.0.1                10.0.0.1: an IPv4 client of an IPv6 listener
    2001:DB8:0:0:0:0:0:1           2001:db8::1: rules from a Kafka cluster have Java's spelling
    fe80:0:0:0:0:0:0:1%eth0        fe80::1%eth0: a link-local address is one only together with its interface
    *, anything else               as it is, because it is no address

Source: RFC 5952 for IPv6. Kafka compares the text of a rule with Java's `InetAddress.getHostAddress`.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

_ADDRESS_CHARACTERS_MAX: Final = 64
"""No address is longer; a client may send a rule with any text in the place of one."""


@lru_cache(maxsize=4096)
def one_spelling(host: str) -> str:
    """Return the address as this appliance compares it; a text that is no address comes back as it is."""
    if len(host) > _ADDRESS_CHARACTERS_MAX:
        return host
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
