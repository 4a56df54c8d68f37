"""Frames: what stands between two requests of one connection.

    offset   0         4
             ┌─────────┬──────────────────────┐
             │ size    │ header and body      │   size: int32, big endian, counts what follows it
             └─────────┴──────────────────────┘

The size is the first thing a stranger can lie about, so it is judged before anything else: it must be above 0
and at most the limit of the connection (`socket.request.max.bytes`, less before authentication). A frame that
is refused costs no memory: only its four bytes were read.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from appliance.errors import MalformedFrame

SIZE: Final = Struct(">i")
SIZE_BYTES: Final = SIZE.size

REQUEST_BYTES_MIN: Final = 8
"""Key, version and correlation id: nothing shorter can be a request."""

# What people and scanners send to a port they take for something else. The key is what the first bytes read
# as.
_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
_TLS_HANDSHAKE: Final = 0x16
_TLS_MAJOR: Final = 0x03


def frame_size(buffer: memoryview, position: int, *, size_max: int) -> int:
    """The size that the four bytes at `position` declare, without the prefix itself.

    Raises:
        MalformedFrame: the size is not in [1, `size_max`], or the bytes are of another protocol; the text
        says which.
    """
    size: int = SIZE.unpack_from(buffer, position)[0]
    if REQUEST_BYTES_MIN <= size <= size_max:
        return size
    raise MalformedFrame(
        _why_refused(bytes(buffer[position : position + SIZE_BYTES]), size, size_max=size_max)
    )


def _why_refused(prefix: bytes, size: int, *, size_max: int) -> str:
    if prefix in _HTTP_METHODS:
        return f"an HTTP request ({prefix.decode().strip()} …) on a Kafka port"
    if prefix[0] == _TLS_HANDSHAKE and prefix[1] == _TLS_MAJOR:
        return "a TLS handshake on a port without TLS"
    if size <= 0:
        return f"frame size {size} is not positive"
    if size < REQUEST_BYTES_MIN:
        return f"frame size {size} is too small for a request header"
    return f"frame size {size} is above the limit of {size_max} bytes"
