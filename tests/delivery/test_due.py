from __future__ import annotations

import pytest

from appliance.delivery.due import AT, CANCEL, DELAY, ID, Due, InvalidDelivery, due_of

NOW_MS = 1_000_000_000
MAX_MS = 1_000_000

Headers = list[tuple[str, bytes | None]]


def of(headers: Headers, *, timestamp_ms: int = NOW_MS) -> Due | None:
    return due_of(headers, timestamp_ms=timestamp_ms, now_ms=NOW_MS, delay_ms_max=MAX_MS)


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ([], None),
        ([("delivery.other", b"5")], None),
        ([(DELAY, b"5")], Due(NOW_MS + 5, 5)),
        ([(DELAY, b"0")], None),
        ([(AT, b"1000000007")], Due(NOW_MS + 7, 7)),
        ([(AT, b"1000000000")], None),
        ([(AT, b"5")], None),
        ([(DELAY, b"5"), (DELAY, b"5")], Due(NOW_MS + 5, 5)),
        ([(DELAY, b"5"), (AT, b"1000000007")], Due(NOW_MS + 7, 7)),
        ([(ID, b"x")], None),
        ([(ID, b"")], None),
        ([(DELAY, b"5"), (ID, b"x" * 255)], Due(NOW_MS + 5, 5)),
        ([(CANCEL, b"x")], Due(NOW_MS, 0, is_cancel=True)),
    ],
)
def test_what_headers_mean(headers: Headers, due: Due | None) -> None:
    assert of(headers) == due


def test_whether_a_record_is_delayed_does_not_depend_on_when_it_arrives() -> None:
    headers: Headers = [(AT, b"1000000007")]
    for now_ms in (NOW_MS - 5, NOW_MS, NOW_MS + 6, NOW_MS + 8, NOW_MS + 60_000):
        found = due_of(headers, timestamp_ms=NOW_MS, now_ms=now_ms, delay_ms_max=MAX_MS)
        assert found == Due(NOW_MS + 7, 7)


def test_a_timestamp_of_another_day_does_not_choose_the_level() -> None:
    assert of([(AT, b"1000000007")], timestamp_ms=0) == Due(NOW_MS + 7, 7)


@pytest.mark.parametrize(
    "headers",
    [
        [(DELAY, None)],
        [(DELAY, b"")],
        [(DELAY, b"soon")],
        [(DELAY, b"-1")],
        [(DELAY, b"+1")],
        [(DELAY, b" 1")],
        [(DELAY, b"1_0")],
        [(DELAY, b"1.5")],
        [(DELAY, "٥".encode())],
        [(DELAY, b"9" * 40)],
        [(DELAY, b"1" * 1_000_000)],
        [(DELAY, b"1000001")],
        [(AT, b"2000000000")],
        [(DELAY, b"5"), (DELAY, b"6")],
        [(DELAY, b"5"), (AT, b"x")],
        [(DELAY, b"5"), (ID, None)],
        [(DELAY, b"5"), (ID, b"x" * 256)],
        [(DELAY, b"5"), (ID, b"x"), (ID, b"y")],
        [(CANCEL, b"")],
        [(CANCEL, b"x" * 256)],
        [(CANCEL, b"x"), (DELAY, b"5")],
        [(CANCEL, b"x"), (ID, b"x")],
    ],
)
def test_what_cannot_be_meant_is_refused(headers: Headers) -> None:
    with pytest.raises(InvalidDelivery, match="delivery"):
        of(headers)
