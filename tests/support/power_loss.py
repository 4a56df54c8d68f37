"""Cuts the power: what was not forced to the disk is gone. See `disk_layer/sitecustomize.py` for what is recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

LAYER: Final = Path(__file__).parent / "disk_layer"


def layer_environment() -> dict[str, str]:
    """What puts the layer under every Python process that inherits it; add a variable that says what it does."""
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(LAYER), *([inherited] if inherited else [])])}


def after_power_loss(directory: Path, shadow: Path, to: Path) -> None:
    """Makes `to` what the disk would hold of `directory`: forced names only, each with its forced content.

    A name whose file was never forced is there with no content, as a file system leaves it at worst.
    """
    to.mkdir()
    record = shadow / f"{directory.stat().st_ino}.names"
    names: dict[str, int] = json.loads(record.read_text()) if record.exists() else {}
    # A directory is found by its inode, whatever it is called by now.
    by_inode = {entry.inode(): Path(entry.path) for entry in os.scandir(directory) if entry.is_dir()}
    for name, inode in names.items():
        if inode in by_inode:
            after_power_loss(by_inode[inode], shadow, to / name)
        else:
            content = shadow / f"{inode}.content"
            (to / name).write_bytes(content.read_bytes() if content.exists() else b"")
