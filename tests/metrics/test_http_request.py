"""Which requests of a scraper are served, and which are refused."""

from __future__ import annotations

import pytest

from appliance.metrics.http_request import HEAD_BYTES_MAX, Refusal, Request, is_allowed, parse_request

GOOD = b"GET /metrics?a=b HTTP/1.1\r\nHost: 127.0.0.1:9644\r\nAccept: text/plain\r\n\r\n"


def parsed(received: bytes) -> Request | Refusal | None:
    return parse_request(received, allowed_hosts=("metrics.example",))


def test_a_request_is_whole_with_its_last_byte_and_not_before() -> None:
    for end in range(len(GOOD)):
        assert parsed(GOOD[:end]) is None
    request = parsed(GOOD + b"GET /next")
    assert request == Request("GET", "/metrics", "text/plain", True, len(GOOD))


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: x, Close\r\n\r\n", False),
        (b"HEAD / HTTP/1.1\r\nhost:[::1]:9644\r\n\r\n", True),
    ],
)
def test_the_connection_is_kept_as_http_says(head: bytes, keep_alive: bool) -> None:
    request = parsed(head)
    assert isinstance(request, Request)
    assert request.keep_alive is keep_alive


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:9644\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n folded: line\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /" + b"a" * HEAD_BYTES_MAX, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 100 + b"\r\n", 431),
    ],
)
def test_what_no_scraper_sends_is_refused(head: bytes, status: int) -> None:
    refusal = parsed(head)
    assert isinstance(refusal, Refusal), refusal
    assert refusal.status == status


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3:9644", True),
        ("[::1]", True),
        ("[fe80::1]:80", True),
        ("LOCALHOST:1", True),
        ("metrics.example.:9644", True),
        ("metrics.example.evil", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example", False),
    ],
)
def test_a_host_is_allowed_by_address_or_by_name(host: str, allowed: bool) -> None:
    assert is_allowed(host, {"metrics.example"}) is allowed
