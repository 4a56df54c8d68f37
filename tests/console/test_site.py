"""What the site does with requests of strangers, and with streams that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from appliance.console.server import Request
from appliance.console.site import Site, is_same_site
from appliance.console.visit import BadInput


def request(**headers: str) -> Request:
    return Request("POST", "/x", {}, {}, {}, {"host": "localhost:9645", **headers})


@pytest.mark.parametrize("origin", ["http://[", "null", "https://evil.example", "http://localhost:8000", ""])
def test_another_origin_is_another_site(origin: str) -> None:
    assert not is_same_site(request(origin=origin))
    assert is_same_site(request(origin="http://localhost:9645"))


def test_the_cookie_of_a_page_with_tls_is_for_tls_only() -> None:
    site = object.__new__(Site)
    site.cookie = "c"
    assert "; Secure" in site._set_cookie("t", request(origin="https://console.example"))[1]
    assert "Secure" not in site._set_cookie("t", request(origin="http://localhost:9645"))[1]


def failing(error: Exception) -> Iterator[bytes]:
    yield b": here\n\n"
    raise error


@pytest.mark.parametrize("error", [BadInput("too many live pages are open"), IndexError(3)])
def test_a_stream_that_fails_says_so_and_ends(error: Exception) -> None:
    site = object.__new__(Site)
    lines: list[str] = []
    site._complain = lines.append
    first, last = site._streamed(request(), failing(error))
    assert first == b": here\n\n"
    assert last.startswith(b"event: ended\ndata: ")
    text = json.loads(last.partition(b"data: ")[2])
    assert (text == str(error)) is isinstance(error, BadInput)
    assert len(lines) == (not isinstance(error, BadInput))
