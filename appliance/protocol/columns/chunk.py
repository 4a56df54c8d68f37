"""What a scan hands out: stretches of sound batches, in one buffer that is used again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Corruption = tuple[str, int, str]
"""(file, position, what does not hold) of something that was skipped."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches whose checksums hold. VALID UNTIL THE NEXT STEP of the scan only.

    `data` is a view (uint8) of the scan's buffer; `batches` (dtype BATCH) says where in it each batch lies. Batches
    outside of [start, end), control batches and those of aborted transactions are left out; the first and the last one
    may reach beyond the bounds, so records are to be clipped to `start <= offset < end`.
    """

    data: npt.NDArray[np.uint8]
    batches: npt.NDArray[np.void]
    start: int
    end: int
    path: str
    file_position: int
    """Where `data` begins in the file `path`."""
