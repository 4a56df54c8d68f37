"""One HTTP request of a scraper: bytes in, a decision out. Without I/O.

    incomplete   Request is None: read on
    whole        Request, and how many bytes it has taken
    refused      Refusal: a status, and the connection ends

Only GET and HEAD without a body are served, so a request is its head. A head of more than HEAD_BYTES_MAX is refused: a
scraper sends a few hundred bytes (nginx takes 8 KiB a line, Go's server 1 MiB in all).

A request must name this host: an address, localhost, or a name that the operator allows. A web page that a browser on
this host shows can have its own name resolved to 127.0.0.1 (DNS rebinding), and would then read the metrics; but the
browser sends that name in `Host`.

Source: RFC 9112, sections 2.2, 3 and 9.3.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

HEAD_BYTES_MAX: Final = 8192
HEADERS_MAX: Final = 64

_END: Final = b"\r\n\r\n"
_LINE: Final = re.compile(rb"(?P<method>[!-~]{1,32}) (?P<target>[!-~]{1,2048}) HTTP/1\.(?P<minor>[01])")
_HEADER: Final = re.compile(
    rb"(?P<name>[-!#$%&'*+.^_`|~0-9A-Za-z]+):[ \t]*(?P<value>[\t -~\x80-\xff]*?)[ \t]*"
)
_METHODS: Final = frozenset({b"GET", b"HEAD"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may be answered. `length_bytes` of the bytes that were read are its own."""

    method: str
    path: str
    accept: str
    keep_alive: bool
    length_bytes: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served. The connection ends behind the answer."""

    status: int
    text: str


def parse_request(received: bytes, *, allowed_hosts: Collection[str]) -> Request | Refusal | None:
    """Return the request at the beginning of `received`, None if its end has not come yet."""
    end = received.find(_END, 0, HEAD_BYTES_MAX)
    if end < 0:
        if len(received) >= HEAD_BYTES_MAX:
            return Refusal(431, f"the head has more than {HEAD_BYTES_MAX} bytes")
        return None
    first, *lines = received[:end].split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        return Refusal(400, "the first line is no request of HTTP/1.0 or HTTP/1.1")
    if len(lines) > HEADERS_MAX:
        return Refusal(431, f"more than {HEADERS_MAX} headers")
    headers: dict[str, str] = {}
    for each in lines:
        header = _HEADER.fullmatch(each)
        if header is None:
            return Refusal(400, "a line of the head is no header")
        name = header["name"].decode("ascii").lower()
        if name == "host" and name in headers:
            return Refusal(400, "two headers Host")
        headers[name] = header["value"].decode("latin-1")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return Refusal(400, "a request with a body is not served")
    minor = int(line["minor"])
    host = headers.get("host", "")
    if minor and "host" not in headers:
        return Refusal(400, "a request of HTTP/1.1 needs a header Host")
    if host and not is_allowed(host, allowed_hosts):
        return Refusal(
            421, "the header Host names another host: use an address, or set metrics.allowed.hosts"
        )
    if line["method"] not in _METHODS:
        return Refusal(405, "only GET and HEAD are served")
    options = {each.strip().lower() for each in headers.get("connection", "").split(",")}
    return Request(
        method=line["method"].decode("ascii"),
        path=line["target"].decode("ascii").partition("?")[0],
        accept=headers.get("accept", ""),
        keep_alive="close" not in options and (minor == 1 or "keep-alive" in options),
        length_bytes=end + len(_END),
    )


def is_allowed(host: str, allowed_hosts: Collection[str]) -> bool:
    """Return whether a header Host names this host. Any address does, because a name is what an attacker needs."""
    name = host.rpartition(":")[0] if re.search(r":[0-9]*\Z", host) and not host.endswith("]") else host
    name = name.strip("[]").lower().removesuffix(".")
    if name == "localhost" or name in allowed_hosts:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
