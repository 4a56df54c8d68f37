"""The forms of `consume --from`."""

from __future__ import annotations

import time

import click
import pytest

from appliance.cli.positions import Anchor, Place, parse_place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", Place(Anchor.BEGINNING)),
        ("end", Place(Anchor.END)),
        ("0", Place(Anchor.OFFSET, 0)),
        ("9223372036854775807", Place(Anchor.OFFSET, 2**63 - 1)),
        ("-7", Place(Anchor.END, 7)),
        ("+7", Place(Anchor.BEGINNING, 7)),
        ("start", Place(Anchor.BEGINNING)),
        ("earliest", Place(Anchor.BEGINNING)),
        ("latest", Place(Anchor.END)),
        ("@1700000000000", Place(Anchor.TIMESTAMP, 1_700_000_000_000)),
        ("2023-11-14T22:13:20", Place(Anchor.TIMESTAMP, 1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", Place(Anchor.TIMESTAMP, 1_700_000_000_000)),
        ("2023-11-14T22:13:20.500+00:00", Place(Anchor.TIMESTAMP, 1_700_000_000_500)),
        ("2023-11-15T00:13:20+02:00", Place(Anchor.TIMESTAMP, 1_700_000_000_000)),
    ],
)
def test_every_form_is_read(text: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    assert parse_place(text) == place


def test_time_ago_is_counted_from_now() -> None:
    before_ms = int(time.time() * 1000)
    place = parse_place("90m", "--until")
    assert place.anchor is Anchor.TIMESTAMP
    assert 0 <= place.distance - (before_ms - 90 * 60_000) < 10_000


@pytest.mark.parametrize(
    "text", ["", "begin", "9223372036854775808", "1.5", "--1", "@", "@-1", "2023-13-01", "٣"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="must be beginning, end"):
        parse_place(text)
