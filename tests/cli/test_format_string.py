"""`consume --format`: each directive, and what is no directive."""

from __future__ import annotations

from typing import Any

import click
import pytest

from appliance.cli.format_string import format_string


class Record:
    """What librdkafka gives, as far as a format asks for it."""

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 17

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_700_000_000_123)

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return b"\xffv"

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("a", b"1"), ("b", None)]


def shown(text: str, *, encoding: str = "raw") -> bytes:
    record: Any = Record()
    return format_string(text, encoding=encoding, null_marker="NULL")(record)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("%t[%p]@%o\\n", b"orders[3]@17\n"),
        ("%T %d", b"1700000000123 2023-11-14T22:13:20.123Z"),
        ("%k=%v", b"NULL=\xffv"),
        ("%s", b"\xffv"),
        ("%h", b"a=1,b=NULL"),
        ("%K %S", b"-1 2"),
        ("100%% \\t\\r\\0\\\\\\x41é", b"100% \t\r\0\\A" + "é".encode()),
        ("", b""),
    ],
)
def test_directive_and_escape(text: str, bytes_: bytes) -> None:
    assert shown(text) == bytes_


@pytest.mark.parametrize(("encoding", "bytes_"), [("base64", b"NULL /3Y="), ("hex", b"NULL ff76")])
def test_bytes_are_written_as_asked(encoding: str, bytes_: bytes) -> None:
    assert shown("%k %v", encoding=encoding) == bytes_


@pytest.mark.parametrize("text", ["%x", "50%", "\\", "\\q", "\\x4"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="--format"):
        shown(text)
