"""The mark of an adoption under way in a data directory. It imports little: every start of `appliance serve` asks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from appliance.errors import OperatorFault

MARKER: Final = "adoption.json"


def refuse_unfinished(data_dir: Path) -> None:
    """Raises OperatorFault where an adoption into this data directory was not finished."""
    if (data_dir / MARKER).exists():
        raise OperatorFault(
            f"an adoption into {data_dir} was interrupted; run `appliance adopt` again with the same directories"
        )
