"""What a data directory on this host tells of its broker: the address, and where the logs are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from appliance_client.errors import OptionError

SCHEME: Final = "shm://"
RUN_FILE: Final = "run.json"
_LANES: Final = ("shared-memory", "hello")


def is_local(servers: Any) -> bool:
    """Whether a bootstrap address is that of a data directory."""
    return isinstance(servers, str) and servers.strip().lower().startswith(SCHEME)


def data_directory_of(servers: str) -> Path:
    """The data directory of `shm:///data-dir`. Raises OptionError where it is none."""
    path = Path(servers.strip()[len(SCHEME) :])
    if not path.is_absolute():
        raise OptionError(f"bootstrap.servers: {servers} is not shm:// and an absolute path")
    return path


def has_lanes(data_directory: Path) -> bool:
    """Whether this user may ask for a shared-memory lane there."""
    return os.access(data_directory.joinpath(*_LANES), os.W_OK)


def address_in(data_directory: Path) -> str:
    """`host:port` of the broker that runs on a data directory.

    Raises:
        OptionError: none runs there, or this user may not know.
    """
    try:
        facts = json.loads((data_directory / RUN_FILE).read_text())
        host, port = str(facts["host"]), int(facts["port"])
    except OSError as error:
        raise OptionError(f"bootstrap.servers: no broker on {data_directory}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"bootstrap.servers: {data_directory / RUN_FILE} tells no address") from error
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def log_directories(data_directory: Path) -> list[str]:
    """The log directories of a data directory: by what its broker wrote down, or by how they look."""
    found: list[str] = []
    try:
        for slot in json.loads((data_directory / RUN_FILE).read_text())["log_dirs"]:
            found += [str(each) for each in slot]
    except (OSError, ValueError, KeyError, TypeError):
        for path in sorted(data_directory.glob("slot-*.log-dirs.json")):
            try:
                found += sorted(json.loads(path.read_text()))
            except (OSError, ValueError):
                continue
    if not found:
        inside = [each for each in sorted(os.listdir(data_directory)) if not each.startswith(".")]
        found = [
            str(data_directory / each)
            for each in inside
            if (data_directory / each / "meta.properties").exists()
        ]
        if (data_directory / "meta.properties").exists():
            found.append(str(data_directory))
    return found
