"""The supervisor under systemd, whose part is played by a datagram socket and three variables."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from appliance.control.systemd import Notifier, listening_sockets
from tests.control.conftest import StartInstance
from tests.control.instances import PATIENCE_S
from tests.support.wire import free_ports

Environment = dict[str, str]

# Bash hands the descriptor whose number is its first argument on as systemd would.
AS_SYSTEMD = 'exec 3<&"$0"; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'


class Systemd:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(PATIENCE_S)

    def wait_for(self, assignment: str) -> list[str]:
        """The notification that holds `assignment`."""
        while True:
            lines = self.socket.recv(4096).decode().splitlines()
            if assignment in lines:
                return lines


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    played = Systemd(tmp_path / "notify")
    yield played
    played.socket.close()


def test_readiness_and_stop_are_notified(start_instance: StartInstance, systemd: Systemd) -> None:
    instance = start_instance(environment={"NOTIFY_SOCKET": str(systemd.path)})
    assert f"MAINPID={instance.process.pid}" in systemd.wait_for("READY=1")
    instance.kill("purgatory")
    systemd.wait_for("STATUS=purgatory restarts")
    systemd.wait_for("STATUS=serving")
    assert instance.stop() == 0, instance.errors()
    systemd.wait_for("STOPPING=1")


def test_watchdog_is_fed_and_a_process_that_does_not_answer_is_restarted(
    start_instance: StartInstance, systemd: Systemd
) -> None:
    instance = start_instance(
        behaviours={"netproc1": "deaf"},
        environment={"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "2000000"},
    )
    instance.wait_ready()
    instance.behave("netproc1", "")
    systemd.wait_for("WATCHDOG=1")
    instance.wait_event("netproc 1", "heartbeat", 2)
    # Those who answer are left alone, though one may have lost its processor for a while.
    assert {note["role"] for note in instance.events("born") if note["generation"] > 1} == {"netproc 1"}
    assert instance.stop() == 0, instance.errors()
    assert "netproc 1 did not answer for 2000 ms and was killed" in instance.errors()


def test_who_is_silent_over_long_work_is_left_to_it(start_instance: StartInstance, systemd: Systemd) -> None:
    instance = start_instance(
        behaviours={"netproc1": "long 7000"},
        environment={"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "2000000"},
    )
    instance.wait_ready()
    instance.wait_event("netproc 1", "heartbeat", 1)
    assert not [note for note in instance.events("born") if note["generation"] > 1]
    assert instance.stop() == 0, instance.errors()


def test_children_do_not_see_what_was_meant_for_the_service(
    start_instance: StartInstance, systemd: Systemd
) -> None:
    instance = start_instance(environment={"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "60000000"})
    instance.wait_ready()
    for child in instance.children().values():
        with Path(f"/proc/{child.pid}/net/unix").open() as table:
            inodes = {line.split()[6] for line in table if line.rstrip().endswith(str(systemd.path))}
        held = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{child.pid}/fd")}
        assert not held & {f"socket:[{inode}]" for inode in inodes}


def test_socket_bound_by_systemd_is_used(start_instance: StartInstance) -> None:
    port = free_ports()
    given = socket.create_server(("127.0.0.1", port))
    instance = start_instance(
        port=port,
        wrapper=("/bin/bash", "-c", AS_SYSTEMD, str(given.fileno())),
        pass_fds=(given.fileno(),),
    )
    instance.wait_ready()
    inode = os.fstat(given.fileno()).st_ino
    acceptor = instance.children()["acceptor"]
    held = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{acceptor.pid}/fd")}
    assert f"socket:[{inode}]" in held
    assert instance.stop() == 0, instance.errors()
    given.close()


def test_ready_line_tells_the_address_of_the_socket_that_systemd_bound(start_instance: StartInstance) -> None:
    port = free_ports()
    with socket.create_server(("127.0.0.2", port)) as given:
        instance = start_instance(
            "host=0.0.0.0",
            port=port,
            wrapper=("/bin/bash", "-c", AS_SYSTEMD, str(given.fileno())),
            pass_fds=(given.fileno(),),
        )
        assert instance.wait_ready().startswith(f"appliance ready on 127.0.0.2:{port} ")
        assert instance.stop() == 0, instance.errors()
    assert f"slot 0 listens on 127.0.0.2:{port}, on the socket passed by systemd" in instance.errors()
    assert "without authentication" not in instance.errors()


def test_socket_of_systemd_that_other_hosts_reach_is_warned_of(start_instance: StartInstance) -> None:
    port = free_ports()
    with socket.create_server(("0.0.0.0", port)) as given:
        instance = start_instance(
            "insecure=true",
            port=port,
            wrapper=("/bin/bash", "-c", AS_SYSTEMD, str(given.fileno())),
            pass_fds=(given.fileno(),),
        )
        assert instance.wait_ready().startswith(f"appliance ready on 0.0.0.0:{port} ")
        assert instance.stop() == 0, instance.errors()
    assert f"listening without authentication on 0.0.0.0:{port}" in instance.errors()


def test_socket_of_systemd_that_other_hosts_reach_is_refused_without_consent(
    start_instance: StartInstance,
) -> None:
    port = free_ports()
    with socket.create_server(("0.0.0.0", port)) as given:
        instance = start_instance(
            port=port,
            wrapper=("/bin/bash", "-c", AS_SYSTEMD, str(given.fileno())),
            pass_fds=(given.fileno(),),
        )
        assert instance.process.wait(30) == 2
    assert f"listener PLAINTEXT on 0.0.0.0:{port} authenticates nobody" in instance.errors()


@pytest.mark.parametrize("kind", ["another port", "a Unix socket"])
def test_socket_of_systemd_that_no_slot_can_use_is_refused_by_name(
    start_instance: StartInstance, tmp_path: Path, kind: str
) -> None:
    port = free_ports(2)
    if kind == "another port":
        given, wanted = socket.create_server(("127.0.0.1", port + 1)), f"a socket on 127.0.0.1:{port + 1}"
    else:
        given, wanted = socket.socket(socket.AF_UNIX), "a socket that is not TCP"
        given.bind(str(tmp_path / "s"))
    with given:
        instance = start_instance(
            port=port,
            wrapper=("/bin/bash", "-c", AS_SYSTEMD, str(given.fileno())),
            pass_fds=(given.fileno(),),
        )
        assert instance.process.wait(30) == 2
    assert f"systemd passed {wanted}" in instance.errors()
    assert "ListenStream=" in instance.errors()


def test_notifier_is_silent_without_systemd() -> None:
    environment: Environment = {}
    notifier = Notifier.from_environment(environment)
    assert notifier.watchdog_ms == 0
    assert not notifier.send("READY=1")


def test_notifier_speaks_to_an_abstract_socket() -> None:
    name = f"appliance-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(PATIENCE_S)
        environment = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "5000000"}
        notifier = Notifier.from_environment(environment)
        assert environment == {}
        assert notifier.watchdog_ms == 5000
        notifier.alive()
        assert receiver.recv(100) == b"WATCHDOG=1"
        notifier.close()


def test_watchdog_meant_for_another_process_is_left_to_it() -> None:
    environment = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}
    notifier = Notifier.from_environment(environment)
    assert notifier.watchdog_ms == 0
    notifier.close()


def test_sockets_meant_for_another_process_are_left_alone() -> None:
    before = psutil.Process().num_fds()
    assert listening_sockets({"LISTEN_PID": "1", "LISTEN_FDS": "2"}) == []
    assert psutil.Process().num_fds() == before
