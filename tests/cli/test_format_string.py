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

    def leader_epoch(self) -> int | None:
        return 5

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
        ("%e %H %V %i", b"5 2 2 1"),
        ("%R", b"\0\0\0\2"),
        ("%k{hex}|%v{hex}|%v{base64}|%v{raw}", b"NULL|ff76|/3Y=|\xffv"),
        ('%{"k":%k{json},"v":%v{json}%}', b'{"k":null,"v":{"base64": "/3Y="}}'),
        ("%o{big64}%p{little16}%o{hex32}%o{ascii}", b"\0" * 7 + b"\x11\x03\0" + b"0000001117"),
        ("%K{big32}%K{hex8}", b"\xff\xff\xff\xffff"),
        ("%d{strftime[%Y-%m-%d %H:%M]} %d{strftime[{%S}]}", b"2023-11-14 22:13 {20}"),
        ("%h{%k:%v(%V);}%h{%%\\t}", b"a:1(1);b:NULL(-1);%\t%\t"),
        ("100%% \\t\\r\\0\\\\\\x41é", b"100% \t\r\0\\A" + "é".encode()),
        ("", b""),
    ],
)
def test_directive_and_escape(text: str, bytes_: bytes) -> None:
    assert shown(text) == bytes_


@pytest.mark.parametrize(("encoding", "bytes_"), [("base64", b"NULL /3Y="), ("hex", b"NULL ff76")])
def test_bytes_are_written_as_asked(encoding: str, bytes_: bytes) -> None:
    assert shown("%k %v", encoding=encoding) == bytes_


@pytest.mark.parametrize(
    "text",
    [
        "%x",
        "50%",
        "\\",
        "\\q",
        "\\x4",
        "%v{rot13}",
        "%v{hex",
        "%o{big24}",
        "%d{hex}",
        "%h{%t}",
        "%d{strftime[%F}",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="--format"):
        shown(text)


def test_records_are_counted_from_one() -> None:
    record: Any = Record()
    formatted = format_string("%i,%i;", encoding="raw", null_marker="")
    assert formatted(record) + formatted(record) == b"1,1;2,2;"
