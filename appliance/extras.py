"""Packages that only some commands and settings need, and the extra that installs each (decision 0090).

The broker runs without them. Code imports them late, where it needs them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from appliance.errors import OperatorFault

EXTRA_OF: Final = {
    "confluent_kafka": "cli",
    "rich": "cli",
    "cryptography": "cli",
    "jinja2": "console",
    "fastavro": "schemas",
    "google": "schemas",
    "kazoo": "zookeeper",
    "jwt": "oauth",
    "opentelemetry": "telemetry",
    "pyarrow": "spark",
    "pyspark": "spark",
    "numba": "spark",
}
"""Module → extra."""


def is_installed(module: str) -> bool:
    """Return whether a module of EXTRA_OF can be imported, without importing it."""
    return find_spec(module) is not None


def missing(module: str, *, needed_by: str, extra: str | None = None) -> OperatorFault | None:
    """Return the error for a module that cannot be imported; None for a module that belongs to no extra.

    Args:
        module: the module's full name, such as `ModuleNotFoundError.name`.
        needed_by: the command or setting that needs it.
        extra: the one to install for it, where that is not the one of EXTRA_OF.
    """
    package = module.partition(".")[0]
    extra = extra or EXTRA_OF.get(package)
    if extra is None:
        return None
    return OperatorFault(
        f"{needed_by} needs the package {package}, which is not installed. It belongs to the extra `{extra}`; "
        f"in a clone of the appliance run: pip install '.[{extra}]'"
    )


def need(module: str, *, needed_by: str, extra: str | None = None) -> None:
    """Raises:
    OperatorFault: the module is not installed; the text names its extra.
    """
    if not is_installed(module) and (fault := missing(module, needed_by=needed_by, extra=extra)) is not None:
        raise fault
