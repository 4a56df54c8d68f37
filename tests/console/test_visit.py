"""What one request may use: time to decode records by their schemas."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from appliance.console import visit as under_test
from appliance.console.visit import Visit
from appliance.schemas.decoder import Decoded


class Slow:
    """A decoder that takes its time, as a hostile record or registry makes it do."""

    def __init__(self) -> None:
        self.calls = 0

    def decode(self, data: bytes, *, topic: str, part: str, form: str) -> Decoded:
        self.calls += 1
        time.sleep(0.02)
        return Decoded("avro", "7", "Avro")


def test_decoding_for_one_page_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "DECODING_S", 0.1)
    decoder = Slow()
    site = SimpleNamespace(
        decoder=decoder, settings=SimpleNamespace(console=SimpleNamespace(value_max_bytes=99))
    )
    visit = Visit(site, None, SimpleNamespace(link=None), None)  # type: ignore[arg-type]
    found = [visit.shown(b"\0abc", topic="t", part="value") for _ in range(50)]
    assert found[0].form == "avro"
    assert decoder.calls <= 6
    assert (found[-1].form, found[-1].note) == ("hex", "not decoded, because others of this page took 0 s")
    visit.begin_round()
    assert visit.shown(b"\0abc", topic="t", part="value").form == "avro"
