"""The log's own figures, without clients: what `make bench-log` measures, and the page it keeps.

Each part is a program of `micro/`, run alone one after the other; the page carries what they print.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.places import RESULTS, ROOT
from benchmarks.source import name_of_now

PARTS: Final = (
    ("Append, beside CRC-32C and one `pwrite` of the same bytes", ("log_append",)),
    ("Group commit: acknowledged records a second, beside the disk's bare fdatasync", ("group_commit",)),
    ("Lookups by offset and by timestamp", ("log_lookup", "--segments", "10,10000")),
    ("Recovery of 1 GB", ("log_recovery", "--gigabytes", "1")),
    ("Recovery of 10 GB", ("log_recovery", "--gigabytes", "10")),
    ("Operations through the purgatory, beside many that wait", ("purgatory",)),
    ("Compaction of a million keys", ("compaction", "--keys", "1000000")),
    ("Compaction of ten million keys", ("compaction", "--keys", "10000000")),
)


def measure(wanted: Iterable[str] = ()) -> Path:
    """Runs the parts, those of the programs `wanted` or all; where the page was kept.

    Raises:
        SystemExit: a part failed, or there is none of that name; nothing is kept.
    """
    names = set(wanted)
    if unknown := names - {arguments[0] for _, arguments in PARTS}:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}")
    build = "compiled" if any((ROOT / "appliance").rglob("*.so")) else "pure"
    about = ", ".join(f"{key} {value}" for key, value in machine.description().items())
    text = [f"# The log by itself, {name_of_now()}\n\n{build} build; {about}. One run, wall time.\n"]
    for title, (program, *arguments) in PARTS:
        if names and program not in names:
            continue
        command = [sys.executable, "-m", f"benchmarks.micro.{program}", *arguments]
        print(f"{title} …", file=sys.stderr, flush=True)
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{program} failed")
        print(done.stdout, flush=True)
        shown = " ".join(("python -m", f"benchmarks.micro.{program}", *arguments))
        text.append(f"\n## {title}\n\n`{shown}`\n\n```\n{done.stdout.strip()}\n```\n")
    path = RESULTS / f"{name_of_now()}-log.md"
    path.write_text("".join(text))
    return path
