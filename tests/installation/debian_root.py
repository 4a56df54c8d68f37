"""A fresh Debian system in a directory (scripts/debian-root.sh), in which a test installs packages and runs programs.

It needs root, Debian's archive and a Linux with namespaces. Nothing in it sees or changes the host's system, but the
network, and that only where a test asks for it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
MAKE_S: Final = 900

# In name spaces of its own: the mounts end with the last process, and every process ends with the first one.
_ENTER: Final = r"""
root=$1; shift
mkdir -p "$root/dev/shm"
mount -t proc none "$root/proc"
mount -t tmpfs -o mode=1777 none "$root/dev/shm"
mount -t tmpfs -o mode=1777 none "$root/tmp"
exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
"""


class DebianRoot:
    """A Debian system in a directory.

    Args:
        directory: where it goes; must not be there.
        suite: the release, such as `bookworm`.
        packages: are installed besides the smallest system.
    """

    def __init__(self, directory: Path, suite: str, *packages: str) -> None:
        self.directory = directory
        words = [str(ROOT / "scripts" / "debian-root.sh"), suite, str(directory), *packages]
        subprocess.run(words, check=True, timeout=MAKE_S)

    def run(self, *words: str, network: bool = False, timeout_s: float = 600) -> str:
        """Run a program in it and return what it printed.

        Args:
            words: program and arguments, as the system in the directory knows them.
            network: whether it has the host's network; else it has a network of its own without any address.

        Raises:
            AssertionError: it failed; the text has the end of its output.
        """
        spaces = ["--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
        done = subprocess.run(
            ["unshare", *spaces, "sh", "-euc", _ENTER, "sh", str(self.directory), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert done.returncode == 0, done.stdout[-8000:]
        return done.stdout
