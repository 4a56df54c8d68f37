"""Which metadata store the tests run on: APPLIANCE_STORE=zookeeper makes it a ZooKeeper that the run starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from appliance.channels.wiring import instance_name
from appliance.config import MetadataSettings
from appliance.control.store.left_sessions import DIRECTORY

STORE: Final = "APPLIANCE_STORE"
ADDRESS: Final = "APPLIANCE_ZOOKEEPER"
"""Where the run's server is; set by tests/conftest.py."""


def is_zookeeper_asked_for() -> bool:
    return os.environ.get(STORE, "embedded") == "zookeeper"


def chosen_options(data_dir: Path) -> dict[str, object]:
    """The options of the store that the run asks for."""
    return on_zookeeper(os.environ[ADDRESS], data_dir) if is_zookeeper_asked_for() else {}


def chosen_settings(data_dir: Path) -> MetadataSettings:
    """As `chosen_options`, for a controller without a command line."""
    return settings_of(chosen_options(data_dir))


def settings_of(options: dict[str, object]) -> MetadataSettings:
    if not options:
        return MetadataSettings()
    connect = options["zookeeper.connect"]
    assert isinstance(connect, str)
    return MetadataSettings(store="zookeeper", zookeeper_connect=connect)


def on_zookeeper(address: str, data_dir: Path) -> dict[str, object]:
    """The options of an appliance whose tree is on the server at `address`; one chroot to a data directory."""
    return {
        "metadata.store": "zookeeper",
        "zookeeper.connect": f"{address}/test/{instance_name(data_dir)}",
    }


def copy_metadata(data_dir: Path, target: Path) -> dict[str, object]:
    """Copies what the data directory itself holds, without those of the slots. Returns the options that find the same
    tree from `target`."""
    for entry in data_dir.iterdir():
        if entry.is_file():
            shutil.copy2(entry, target / entry.name)
    if (data_dir / DIRECTORY).is_dir():
        shutil.copytree(data_dir / DIRECTORY, target / DIRECTORY)
    return chosen_options(data_dir)
