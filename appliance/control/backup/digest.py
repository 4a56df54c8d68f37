"""SHA-256 of a stream, counted by a thread of its own while the caller writes the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Self

# A switch between threads takes longer than the digest of a chunk below this length.
_BESIDE_FROM_BYTES: Final = 64 << 10


class StreamDigest:
    """The digest and the length of the bytes that have passed. Close it, or its thread stays."""

    __slots__ = ("_digest", "_thread", "length_bytes")

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self.length_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    @contextmanager
    def beside(self, chunk: bytes | memoryview) -> Iterator[None]:
        """Count `chunk` while the body of the `with` runs. The chunk may change afterwards."""
        self.length_bytes += len(chunk)
        if len(chunk) < _BESIDE_FROM_BYTES:
            self._digest.update(chunk)
            yield
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "backup-digest")
        counted = self._thread.submit(self._digest.update, chunk)
        try:
            yield
        finally:
            counted.result()

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
