"""A broker where there is little: a user without privileges and home, no network, and a container's /dev/shm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import appliance

PATIENCE_S = 60.0
NOBODY = "65534"

ENTER = f"""
mount -t tmpfs -o size=64m,mode=1777 none /dev/shm
exec {sys.executable} -c '
import fcntl, os, socket, struct, sys
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 1, 64
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING))
os.execvp(sys.argv[1], sys.argv[1:])
' setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps=-all,+dac_read_search \\
    --ambient-caps=-all,+dac_read_search --bounding-set=-all,+dac_read_search "$@"
"""
"""The interpreter may lie where nobody but root reads, so the user keeps the right to read, and no other."""

USE = """
import os
from kafka import KafkaProducer
from appliance.testing import Broker

assert os.getuid() == 65534
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 64 << 20
with Broker(slots=2) as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers.split(","), acks="all")
    sent = [producer.send("t", b"x" * 900_000) for _ in range(100)]  # more than /dev/shm has
    for each in sent:
        each.get(timeout=30)
    producer.close()
    print(broker.data_dir)
    print(broker.log())
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory for temporary files as /tmp is; those of pytest are private to the user who runs it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def test_a_user_without_privileges_tests_in_a_container_without_network_and_with_64_mib(
    open_to_all: Path,
) -> None:
    root = str(Path(appliance.__file__).parent.parent)
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-euc", ENTER, "sh", sys.executable, "-c", USE],
        cwd="/",
        env=os.environ | {"PYTHONPATH": root, "HOME": "/proc/none", "TMPDIR": str(open_to_all)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data_dir, log = done.stdout.split("\n", 1)
    assert Path(data_dir).is_relative_to(open_to_all)
    assert "/dev/shm has less than 512 MiB free: buffers are small, requests may have at most 8 MiB" in log
    assert list(open_to_all.iterdir()) == []
