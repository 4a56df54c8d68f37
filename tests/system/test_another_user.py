"""Another user of the host can do nothing to the appliance: before its start, while it runs, while it stops.

The promise is about files, locks, shared memory, Unix sockets and signals. Whoever can reach the port is a client.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.channels import runtime_directory
from appliance.cli.status import processes_of
from appliance.protocol.records.record import Record, encode_batch
from tests.support.another_user import NOBODY, AnotherUser, modes, wait_for_all
from tests.support.broker import Appliance, BrokerFailed
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, produce

TOPIC = "t"
UNPRIVILEGED = 4242
# The capability lets it read the interpreter, wherever that lies; it opens no door to anybody else.
AS_UNPRIVILEGED = (
    "setpriv",
    f"--reuid={UNPRIVILEGED}",
    f"--regid={UNPRIVILEGED}",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
    "--pdeathsig=TERM",
)
WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Owner:
    """Who runs the appliance."""

    uid: int
    wrapper: tuple[str, ...]


@pytest.fixture(params=[Owner(0, ()), Owner(UNPRIVILEGED, AS_UNPRIVILEGED)], ids=["root", "unprivileged"])
def owner(request: pytest.FixtureRequest) -> Owner:
    assert os.geteuid() == 0, "this test plays several users and must be run as root"
    chosen: Owner = request.param
    return chosen


@pytest.fixture
def home(owner: Owner) -> Iterator[Path]:
    """A directory that everybody may pass through, unlike `tmp_path`; what lies in it keeps itself private or not."""
    path = Path(tempfile.mkdtemp(prefix="home-"))
    path.chmod(0o755)
    os.chown(path, owner.uid, owner.uid)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def broker(owner: Owner, home: Path) -> Iterator[Appliance]:
    before = os.umask(0)  # the worst that a shell could give
    appliance = Appliance(home / "data", wrapper=owner.wrapper)
    try:
        yield appliance
    finally:
        os.umask(before)
        appliance.kill()


SHARED_PARENT = 0o1777
"""Of /tmp: everybody may create names, and remove only their own."""


def append(broker: Appliance) -> int:
    with WireSocket(broker.port) as connection:
        answer = produce(connection, TOPIC, encode_batch([Record(b"value")]))
    assert answer.error == 0
    return answer.base_offset


def test_another_user_cannot_open_lock_reach_or_stop_anything(broker: Appliance, owner: Owner) -> None:
    with AnotherUser(broker.data_dir, (owner.uid,)) as nobody:
        assert nobody.plant() > 100, "nothing was planted: the test tests nothing"
        broker.start()
        assert create_topic(broker.port, TOPIC) == 0
        assert append(broker) == 0
        assert nobody.attack() == []
        for role in ("netproc", "controller", "ioproc"):
            broker.kill_role(role)
            assert wait_for_all(broker.is_whole, WITHIN_S), role
            assert nobody.attack() == []
        assert append(broker) == 1
        broker.stop()  # within its time, with exit code 0, leaving nothing
        assert nobody.attack() == []
        broker.start()
        assert append(broker) == 2
        broker.stop()


def test_another_user_reaches_no_lane_no_zeromq_endpoint_and_no_key(
    broker: Appliance, owner: Owner, home: Path
) -> None:
    broker.set_option("shared.memory.lanes.max", 4)
    broker.set_option("listeners.zeromq", [f"ipc://{home}/z"])
    endpoints = tuple(home / name for name in ("z", "z.0", "z.1"))
    with AnotherUser(broker.data_dir, (owner.uid,), endpoints=endpoints) as nobody:
        assert nobody.attack() == []
        broker.start()
        assert all(stat.S_ISSOCK(each.stat().st_mode) for each in endpoints[:2])
        assert nobody.attack() == []
        broker.kill()
        assert nobody.attack() == []
        broker.start()
        assert nobody.attack() == []
        broker.stop()


def as_nobody(action: Callable[[], object]) -> None:
    """Do something as nobody, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.umask(0)
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def linked(file: Path, name: Path) -> None:
    """Make a file and a second name of it."""
    file.touch()
    os.link(file, name)


@pytest.mark.parametrize("plant", ["link to ours", "link to nothing", "directory", "file", "hard link"])
def test_a_name_that_another_user_planted_for_the_data_directory_is_refused_and_told(
    owner: Owner, home: Path, plant: str
) -> None:
    parent = home / "shared"
    parent.mkdir()
    parent.chmod(SHARED_PARENT)
    precious = home / "precious"
    precious.mkdir(mode=0o755)
    os.chown(precious, owner.uid, owner.uid)
    data = parent / "data"
    planted: dict[str, Callable[[], object]] = {
        "link to ours": lambda: data.symlink_to(precious),
        "link to nothing": lambda: data.symlink_to(precious / "new"),
        "directory": lambda: data.mkdir(mode=0o777),
        "file": data.touch,
        "hard link": lambda: linked(parent / "theirs", data),
    }
    as_nobody(planted[plant])
    broker = Appliance(data, wrapper=owner.wrapper)
    with pytest.raises(BrokerFailed) as refused:
        broker.start()
    assert str(data) in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert list(precious.iterdir()) == []
    assert stat.S_IMODE(precious.stat().st_mode) == 0o755
    if plant == "directory":
        assert list(data.iterdir()) == []
    as_nobody(lambda: data.rmdir() if plant == "directory" else data.unlink())
    broker = Appliance(data, wrapper=owner.wrapper)
    broker.start()
    broker.stop()


@pytest.mark.parametrize("plant", ["lock", "link as lock", "endpoint", "link as endpoint"])
def test_names_that_another_user_planted_for_a_zeromq_endpoint_are_refused_and_told(
    owner: Owner, home: Path, plant: str
) -> None:
    parent = home / "shared"
    parent.mkdir()
    parent.chmod(SHARED_PARENT)
    precious = home / "precious"
    precious.write_text("ours")
    os.chown(precious, owner.uid, owner.uid)
    name = parent / ("z.lock" if "lock" in plant else "z")
    as_nobody(lambda: name.symlink_to(precious) if "link" in plant else name.touch())
    broker = Appliance(
        home / "data", settings={"listeners.zeromq": [f"ipc://{parent}/z"]}, wrapper=owner.wrapper
    )
    with pytest.raises(BrokerFailed) as refused:
        broker.start()
    assert f"{parent}/z" in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert precious.read_text() == "ours"


def test_names_of_a_killed_life_are_removed_while_another_user_holds_names(
    broker: Appliance, owner: Owner
) -> None:
    with AnotherUser(broker.data_dir, (owner.uid,)) as nobody:
        nobody.plant()
        broker.start()
        killed = runtime_directory.find(broker.data_dir, owner=owner.uid)
        assert killed is not None
        broker.kill()
        assert nobody.attack() == []
        broker.start()
        assert not killed.exists()
        broker.stop()


def test_everything_on_the_disk_is_private_whatever_the_umask(broker: Appliance) -> None:
    broker.start()
    assert create_topic(broker.port, TOPIC) == 0
    assert append(broker) == 0
    running = modes(broker.data_dir)
    broker.stop()
    for found in (running, modes(broker.data_dir)):
        assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


def test_status_finds_a_service_that_has_a_shared_memory_of_its_own(home: Path, owner: Owner) -> None:
    """As under systemd's TemporaryFileSystem=/dev/shm, where no other user can fill it."""
    own = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o mode=1777 none /dev/shm && exec "$@"', "sh")
    broker = Appliance(home / "data", wrapper=(*own, *owner.wrapper))
    broker.start()
    assert runtime_directory.find(broker.data_dir, owner=owner.uid) is None
    assert {row.role for row in broker.processes()} > {"supervisor", "controller", "netproc 0"}
    broker.kill_role("netproc")
    assert wait_for_all(broker.is_whole, WITHIN_S)
    broker.stop()


@pytest.mark.parametrize("starts", [1, 2], ids=["configured from the start", "configured later"])
def test_a_member_of_the_readers_group_reads_logs_and_locks_nothing(
    broker: Appliance, owner: Owner, starts: int
) -> None:
    # Root gives its files to any group; everybody else only to one of its own.
    gid = 4243 if owner.uid == 0 else UNPRIVILEGED
    if starts == 2:
        broker.start()
        assert create_topic(broker.port, TOPIC) == 0
        broker.stop()
    broker.set_option("data.directory.group", str(gid))
    broker.start()
    if starts == 1:
        assert create_topic(broker.port, TOPIC) == 0
    assert append(broker) == 0
    with AnotherUser(broker.data_dir, (owner.uid,), gid=gid) as member:
        done = member.attack()
        partition = broker.data_dir / "slot-0" / f"{TOPIC}-0"
        assert f"read {partition}/00000000000000000000.log" in done
        assert f"read {partition}/.state" in done
        assert [each for each in done if each.split()[0] not in {"read", "list"}] == []
        private = ("/metadata.", "zookeeper.", ".lock", "run.json", "runtime-directory", "/dev/shm")
        assert [each for each in done if any(word in each for word in private)] == []
        broker.stop()


def test_status_as_another_user_names_the_owner(broker: Appliance, owner: Owner) -> None:
    broker.start()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            from appliance.cli import status as _  # noqa: F401 - before the privileges go

            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                processes_of(broker.data_dir.resolve())
            except Exception as fault:
                name = _name_of(owner.uid)
                wanted = f"{broker.data_dir} belongs to user {name}, and nobody cannot read it"
                code = 0 if str(fault).startswith(wanted) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    broker.stop()


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
