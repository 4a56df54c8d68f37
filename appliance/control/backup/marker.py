"""The mark of a restore under way in a data directory. It imports little: every start of `appliance serve` asks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from appliance.errors import OperatorFault

MARKER: Final = "restore-in-progress"


def refuse_unfinished_restore(data_dir: Path) -> None:
    """Raises OperatorFault where a restore into this data directory was not finished."""
    if (data_dir / MARKER).exists():
        raise OperatorFault(
            f"a restore into {data_dir} was interrupted; remove the directory, and run `appliance restore` again"
        )
