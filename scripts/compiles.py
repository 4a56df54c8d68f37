"""Says whether the hot modules would compile: mypyc writes their C, the C compiler reads it, nothing is built.

usage: python -m scripts.compiles, from the top of the tree. Names may be fine in Python and mean something else in C
(`_thread`), and only a build would notice: decision 0013.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from mypyc.build import mypycify

from scripts.hot_modules import hot_modules


def main() -> None:
    with tempfile.TemporaryDirectory() as written:
        extensions = mypycify(["--no-error-summary", *hot_modules()], target_dir=written, verbose=False)
        compiler = shutil.which("cc")
        headers = Path(sysconfig.get_paths()["include"])
        if compiler is None or not (headers / "Python.h").exists():
            print("compiles: no cc or no Python.h here, so only mypyc has looked", file=sys.stderr)
            return
        includes = {
            f"-I{directory}" for extension in extensions for directory in [headers, *extension.include_dirs]
        }
        # The other files are a few lines for each module that import it from this one.
        (group,) = Path(written).glob("__native*.c")
        reading = [compiler, "-fsyntax-only", "-w", *sorted(includes), str(group)]
        sys.exit(subprocess.run(reading, check=False).returncode)


if __name__ == "__main__":
    main()
