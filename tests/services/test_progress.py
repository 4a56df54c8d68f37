from __future__ import annotations

from uuid import UUID

import pytest

from appliance.services.progress import Delivery, Progress, UnreadableProgress, decode, encode


def test_progress_is_read_back_as_it_was() -> None:
    progress = Progress(
        {"5s": 2**62, "1m": 0},
        (
            Delivery(UUID(int=5), 3, 2**61, 2**31 - 1, (("5s", 1), ("1m", 7))),
            Delivery(UUID(int=6), 0, 1, 0, ()),
        ),
    )
    assert decode(encode(progress)) == progress
    assert decode(encode(Progress())) == Progress()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"v": 2, "positions": {}, "open": []}',
        b'{"v": 1, "positions": {"5s": "x"}}',
    ],
)
def test_what_this_version_cannot_read_is_an_error(value: bytes) -> None:
    with pytest.raises(UnreadableProgress, match="not understood"):
        decode(value)
