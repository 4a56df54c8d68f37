"""The container's image: buildah builds the recipe, and its entry point serves a client as process 1 of a container.

Slow: it compiles a wheel, unless these sources were compiled before. The base of the image is a fresh Debian system,
without the files that Debian's slim images leave out, so no registry of images is needed. It needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer

from tests.installation.debian_root import ROOT, DebianRoot
from tests.support.wire import free_ports

sys.path.insert(0, str(ROOT / "scripts"))  # the scripts import each other, as programs
deb = import_module("deb")
wheels = import_module("wheels")

BUILD_S = 3600
BASE = "localhost/debian:bookworm-slim"
UID = 10001
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
SLIM = ("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man")
"""What Debian's slim images leave out. Source: dpkg.cfg.d/docker of debian:bookworm-slim."""

MOST_BYTES = 300_000_000
"""An image above it has something in it that nobody has asked for."""

RUN = r"""
image=$1 data=$2; shift 2
mount --bind "$image" "$image"
mount -t proc none "$image/proc"
mount -t tmpfs -o mode=1777 none "$image/tmp"
mount -t tmpfs none "$image/dev"
mkdir "$image/dev/shm"
mount -t tmpfs -o mode=1777,size=1g none "$image/dev/shm"
for each in null urandom; do : > "$image/dev/$each"; mount --bind "/dev/$each" "$image/dev/$each"; done
mount --bind "$data" "$image/data"
mount -o remount,bind,ro "$image"
exec "$@"
"""
"""What an engine does before it starts the entry point, with a file system that cannot be written (`--read-only`)."""


class Buildah:
    """buildah with a storage of its own below `place`."""

    def __init__(self, place: Path) -> None:
        subprocess.run([ROOT / "scripts/install-debian.sh", "buildah"], check=True)
        self._words = ["buildah", "--root", str(place / "store"), "--runroot", str(place / "run")]
        self._words += ["--storage-driver", "vfs"]

    def __call__(self, *words: str) -> str:
        done = subprocess.run([*self._words, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout.strip()


def make_base(buildah: Buildah, place: Path) -> None:
    """Make the image that stands for `debian:bookworm-slim`."""
    debian = DebianRoot(place / "debian", "bookworm")
    excluded = "".join(f"path-exclude /{name}/*\n" for name in SLIM)
    (debian.directory / "etc/dpkg/dpkg.cfg.d/docker").write_text(excluded)
    for name in SLIM:
        for path in (debian.directory / name).iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    container = buildah("from", "scratch")
    subprocess.run(["cp", "-a", f"{debian.directory}/.", buildah("mount", container)], check=True)
    buildah("commit", "--quiet", "--rm", container, BASE)


def build(buildah: Buildah, wheel: Path, place: Path) -> None:
    """Build the recipe as `podman build` does, from a clone that has nothing but what the recipe needs."""
    clone = place / "clone"
    (clone / "dist").mkdir(parents=True)
    shutil.copy(wheel, clone / "dist")
    shutil.copytree(ROOT / "deploy/container", clone / "deploy/container")
    # The authorities that this host trusts, for hosts behind a proxy. The image does not keep them.
    (place / "pip.conf").write_text("[global]\ncert = /run/certificates.crt\n")
    trust = [
        f"--volume={CERTIFICATES}:/run/certificates.crt:ro",
        f"--volume={place}/pip.conf:/etc/pip.conf:ro",
    ]
    recipe = clone / "deploy/container/Containerfile"
    buildah(
        *(
            "bud",
            "--isolation",
            "chroot",
            "--pull-never",
            "--layers=false",
            f"--build-arg=BASE={BASE}",
            *trust,
        ),
        *("--file", str(recipe), "--tag", "log-appliance", str(clone)),
    )


@contextmanager
def running(image: Path, config: dict[str, Any], data: Path, **variables: str) -> Iterator[psutil.Process]:
    """Run the entry point as an engine does, and yield the container's first process."""
    environment = {**dict(pair.split("=", 1) for pair in config["Env"]), **variables}
    user = f"--userspec={config['User']}:{config['User']}"
    words = ["chroot", user, image, *config["Entrypoint"], *config["Cmd"]]
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    log = (data.parent / "log").open("ab")
    engine = psutil.Popen(
        [*spaces, "sh", "-euc", RUN, "sh", image, data, *words], env=environment, stderr=log
    )
    try:
        while not engine.children():
            time.sleep(0.01)
        (first,) = engine.children()
        yield first
        first.send_signal(signal.SIGTERM)
        assert engine.wait(timeout=30) == 0, (data.parent / "log").read_text()[-4000:]
    finally:
        if engine.is_running():
            engine.kill()
        log.close()


def use(port: int, value: str) -> list[str]:
    """Produce one record, and return all records of the topic. A broker that has just begun is waited for."""
    client = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
    errors: list[object] = []
    producer = Producer(client)
    producer.produce("orders", value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None]
    consumer = Consumer(
        {**client, "group.id": value, "auto.offset.reset": "earliest", "enable.partition.eof": True}
    )
    consumer.subscribe(["orders"])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append((message.value() or b"").decode())
    consumer.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_the_image_serves_as_a_user_without_privileges_from_a_file_system_it_cannot_write(
    tmp_path: Path,
) -> None:
    wheel = wheels.build_one(wheels.interpreters()[deb.version_of_python()], tmp_path / "dist")
    try_image(wheel, tmp_path)


def try_image(wheel: Path, place: Path) -> None:
    """Build the image of a wheel below `place`, and run it twice over the same volume.

    Raises:
        AssertionError: it cannot be built, is too large, or does not serve.
    """
    buildah = Buildah(place)
    make_base(buildah, place)
    build(buildah, wheel, place)
    (described,) = json.loads(buildah("images", "--json", "log-appliance"))
    inspected = json.loads(buildah("inspect", "--type", "image", "log-appliance"))
    config = inspected["OCIv1"]["config"]
    assert config["User"] == str(UID)
    image = Path(buildah("mount", buildah("from", "--pull-never", "log-appliance")))
    assert not (image / "etc/pip.conf").exists() or (image / "etc/pip.conf").stat().st_size == 0
    used = subprocess.run(["du", "-sb", image], capture_output=True, text=True, check=True).stdout.split()[0]
    print(f"the image: {described['size']}, {int(used) / 1e6:.0f} MB of files")
    assert int(used) < MOST_BYTES

    data = place / "volume"
    data.mkdir()
    os.chown(data, UID, UID)
    data.chmod(0o700)
    port = free_ports(1)
    variables = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_NUM_PARTITIONS": "1",
        "APPLIANCE_INSECURE": "true",
    }
    for values in (["one"], ["one", "two"]):
        with running(image, config, data, **variables) as first:
            wait_for(port)
            assert use(port, values[-1]) == values
            assert {process.uids().effective for process in (first, *first.children(recursive=True))} == {UID}
    assert (data / "slot-0/orders-0").stat().st_uid == UID


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return
