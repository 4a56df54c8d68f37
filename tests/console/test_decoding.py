"""Bytes of records as text: what is shown, what is cut, and that no text turns the page around it."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.console.decoding import FORMS, JSON_DEPTH_MAX, hex_dump, printable, shown, typed

LIMIT = 1000


def test_null_and_empty_are_not_the_same() -> None:
    assert shown(None, form="auto", bytes_max=LIMIT).form == "null"
    empty = shown(b"", form="auto", bytes_max=LIMIT)
    assert (empty.form, empty.text, empty.size_bytes) == ("text", "", 0)


def test_json_keeps_every_digit_and_every_member() -> None:
    data = b'{"a":12345678901234567890.123456789,"a":1e400,"b":[],"c":{},"d":[true,null,"x,y:{"]}'
    found = shown(data, form="auto", bytes_max=LIMIT)
    assert found.form == "json"
    assert "12345678901234567890.123456789" in found.text
    assert found.text.count('"a": ') == 2
    assert "1e400" in found.text
    assert '"b": [],' in found.text
    assert '"c": {},' in found.text
    assert '"x,y:{"' in found.text
    assert len(found.text.splitlines()) == 11


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each, max_size=4)
    )
)
def test_indented_json_means_the_same(value: object) -> None:
    data = json.dumps([value]).encode()
    found = shown(data, form="json", bytes_max=1 << 20)
    assert found.form == "json"
    assert json.loads(found.text) == [value]


@pytest.mark.parametrize("data", [b"{", b"[1,]", b"[NaN]", b'{"a":1}x', b"[" * 2000 + b"]" * 2000])
def test_what_is_no_json_is_text(data: bytes) -> None:
    assert shown(data, form="json", bytes_max=10_000).form == "text"


def test_deep_json_is_text() -> None:
    deep = b"[" * (JSON_DEPTH_MAX + 1) + b"]" * (JSON_DEPTH_MAX + 1)
    assert shown(deep, form="auto", bytes_max=LIMIT).form == "text"


def test_bytes_that_are_no_text_are_shown_in_hex() -> None:
    found = shown(b"\x00\xffab", form="auto", bytes_max=LIMIT)
    assert found.form == "hex"
    assert found.text == "000000  00 ff 61 62                                      ..ab"
    assert hex_dump(bytes(17)).splitlines()[1].startswith("000010  00")


def test_a_long_value_is_cut_between_characters() -> None:
    data = "ä".encode() * 1000
    found = shown(data, form="text", bytes_max=101)
    assert found.text == "ä" * 50
    assert found.is_cut
    assert found.size_bytes == 2000


def test_marks_that_turn_text_around_are_not_shown() -> None:
    assert printable("a\u202eb\u2066c\x1b[0m\nd\te") == "a�b�c�[0m\nd\te"
    assert printable("surrogate \udc80") == "surrogate �"
    assert printable("Zoë 日本 🙂") == "Zoë 日本 🙂"


@given(st.binary(max_size=3000), st.sampled_from(FORMS), st.integers(64, 500))
def test_no_page_shows_much_more_than_the_limit(data: bytes, form: str, bytes_max: int) -> None:
    found = shown(data, form=form, bytes_max=bytes_max)
    assert len(found.text) <= bytes_max * 6
    assert found.size_bytes == len(data)
    found.text.encode()


def test_typed_values_are_the_bytes_that_were_meant() -> None:
    assert typed("a\r\nb", "text") == b"a\nb"
    assert typed("00 ff", "hex") == b"\x00\xff"
    assert typed("", "text") == b""
    assert typed("ignored", "null") is None
    with pytest.raises(ValueError, match="hex"):
        typed("0g", "hex")


def test_what_a_page_cuts_off_is_not_made() -> None:
    data = b"[" * 99 + b",".join([b"0"] * 500_000) + b"]" * 99  # indented: 100 MB
    tracemalloc.start()
    try:
        found = shown(data, form="json", bytes_max=len(data))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert (found.form, found.is_cut, len(found.text)) == ("json", True, 2 * len(data))


@pytest.mark.parametrize("count", range(1, 30))
def test_text_that_is_not_cut_is_whole(count: int) -> None:
    data = json.dumps([{"a": [[1, "b"]], "c": {}}] * count).encode()
    found = shown(data, form="json", bytes_max=len(data))
    assert found.is_cut or json.loads(found.text) == json.loads(data)
    whole = shown(data, form="json", bytes_max=len(data) * 8)
    assert not whole.is_cut
    assert found.text == whole.text[: 2 * len(data)]


def test_a_long_string_with_escapes_is_one_token() -> None:
    data = json.dumps({"a": '\\"' * 200_000}).encode()
    found = shown(data, form="json", bytes_max=len(data))
    assert json.loads(found.text) == {"a": '\\"' * 200_000}
