"""Which source a run measured."""

import datetime
import subprocess

from benchmarks.places import ROOT


def commit() -> str:
    """Short name of the commit, `unknown` outside a repository."""
    return _git("rev-parse", "--short", "HEAD") or "unknown"


def is_dirty() -> bool:
    """Whether what is measured differs from that commit."""
    return bool(_git("status", "--porcelain", "--", "appliance", "setup.py"))


def name_of_now() -> str:
    """DATE-COMMIT, as results of today are named."""
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return "-".join(filter(None, (today, commit(), "dirty" if is_dirty() else "")))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
