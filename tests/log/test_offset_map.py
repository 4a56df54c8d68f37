"""The offset map against a dictionary, while it grows and when it is full."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.log.offset_map import ENTRY_BYTES, OffsetMap, _keyed_hash, hash_keys


def put(offsets: OffsetMap, keys: list[bytes], first_offset: int) -> None:
    data = b"".join(bytes([len(key) & 0x7F]) + key for key in keys)
    stops = np.cumsum([len(key) + 1 for key in keys])
    starts = stops - [len(key) for key in keys]
    places = np.arange(first_offset, first_offset + len(keys))
    offsets.put(*hash_keys(data, starts.tolist(), stops.tolist()), places)


def get(offsets: OffsetMap, keys: list[bytes]) -> list[int]:
    data = b"".join(bytes([len(key) & 0x7F]) + key for key in keys)
    stops = np.cumsum([len(key) + 1 for key in keys])
    starts = stops - [len(key) for key in keys]
    found: list[int] = offsets.get(*hash_keys(data, starts.tolist(), stops.tolist())).tolist()
    return found


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=3), min_size=1, max_size=400), min_size=1, max_size=8),
    st.integers(0, 1 << 40),
)
def test_the_map_is_a_dictionary_of_each_keys_last_offset(calls: list[list[bytes]], base: int) -> None:
    offsets = OffsetMap(base, bytes_max=1 << 20)
    model: dict[bytes, int] = {}
    at = base
    for keys in calls:
        put(offsets, keys, at)
        model.update((key, at + number) for number, key in enumerate(keys))
        at += len(keys)
    offsets.check()
    assert offsets.keys == len(model)
    assert get(offsets, list(model)) == list(model.values())
    assert get(offsets, [b"none of them"]) == [-1]


def test_a_map_grows_from_little_to_its_bound_and_no_further() -> None:
    bytes_max = 8 << 20
    offsets = OffsetMap(0, bytes_max=bytes_max)
    assert offsets.statistics().slots * ENTRY_BYTES < bytes_max // 8
    at, sizes = 0, set()
    while offsets.fits(10_000):
        put(offsets, [b"key-%d" % number for number in range(at, at + 10_000)], at)
        at += 10_000
        sizes.add(offsets.statistics().slots)
    offsets.check()
    assert len(sizes) > 3
    assert offsets.statistics().peak_bytes <= bytes_max
    assert at >= 0.55 * bytes_max / ENTRY_BYTES
    keys = [b"key-%d" % number for number in range(0, at, 97)]
    assert get(offsets, keys) == list(range(0, at, 97))


def test_a_map_without_the_interpreters_secret_hashes_with_one_of_its_own() -> None:

    assert _keyed_hash(b"a") == _keyed_hash(b"a") != _keyed_hash(b"b")
