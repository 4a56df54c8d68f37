"""Two spellings of one address are one host, for rules and for clients."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.access.addresses import one_spelling


@pytest.mark.parametrize(
    ("spelled", "same"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("0:0:0:0:0:ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("2001:0db8::0001", "2001:db8::1"),
        ("2001:db8::ffff:1", "2001:db8::ffff:1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("fe80:0:0:0:0:0:0:1%eth0", "fe80::1%eth0"),
    ],
)
def test_an_address_has_one_spelling(spelled: str, same: str) -> None:
    assert one_spelling(spelled) == same


@pytest.mark.parametrize(
    "text",
    ["*", "", "localhost", "10.0.0.0/8", "10.0.0.01", "1", "::1]", " ::1", "2001:db8::1::", "x" * 9999],
)
def test_what_is_no_address_stays_as_it_is(text: str) -> None:
    assert one_spelling(text) == text


def test_the_interface_of_a_link_local_address_counts() -> None:
    assert one_spelling("fe80::1%eth0") != one_spelling("fe80::1%eth1")
    assert one_spelling("fe80::1%eth0") != one_spelling("fe80::1")


@given(st.ip_addresses(v=6))
def test_every_spelling_of_an_ipv6_address_is_one(address: IPv6Address) -> None:
    # Java's: eight groups without leading zeros.
    java = ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))
    assert len({one_spelling(text) for text in (str(address), address.exploded.upper(), java)}) == 1
