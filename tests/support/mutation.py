"""What strangers do to the bytes of a frame: lengths that lie, bytes too many, too few, flipped, told over and over."""

from __future__ import annotations

from hypothesis import strategies as st

# What a length or a count can lie about.
LIES = [
    bytes.fromhex(text)
    for text in (
        "00",
        "ff",
        "7f",
        "80",
        "ffffffff07",
        "ffffffff0f",
        "ffffffffffff",
        "7fffffff",
        "ffffffff",
        "80000000",
        "7fff",
        "8000",
        "c328",
    )
]


@st.composite
def mutated(draw: st.DrawFn, payloads: st.SearchStrategy[bytes]) -> bytes:
    """One of `payloads` with up to four places changed."""
    payload = bytearray(draw(payloads))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(payload)))
        match draw(st.sampled_from(["lie", "insert", "flip", "cut", "drop", "repeat"])):
            case "lie":
                lie = draw(st.sampled_from(LIES))
                payload[at : at + len(lie)] = lie
            case "insert":
                payload[at:at] = draw(st.sampled_from(LIES) | st.binary(max_size=8))
            case "flip" if at < len(payload):
                payload[at] ^= draw(st.integers(1, 255))
            case "cut":
                del payload[at:]
            case "drop":
                del payload[at : at + draw(st.integers(1, 8))]
            case "repeat":
                payload[at:at] = payload[at : at + 16] * draw(st.integers(1, 20))
            case _:
                pass
    return bytes(payload)
