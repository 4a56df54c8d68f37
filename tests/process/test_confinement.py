"""A confined process cannot do what its role never does: each attempt is made in a forked process, for real."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from appliance.channels.roles import RoleKind
from appliance.channels.wiring import Wiring
from appliance.config import Settings, load_settings
from appliance.config.sections.services import ServicesSettings
from appliance.errors import ConfigurationError
from appliance.process.capabilities import Capability, give_up_new_privileges, keep_only
from appliance.process.confinement import (
    WRITE_NO_FILES,
    capabilities_of,
    changes_of,
    confine,
    ports_of,
)
from appliance.process.landlock import Right, restrict, version
from appliance.process.refused_calls import REFUSED, refuse_calls
from tests.support.private_directory import private_directory

_PTRACE_ATTACH = 16


def done_in_a_process(*attempts: Callable[[], object]) -> list[bool]:
    """Return which of the attempts raised no OSError, all made one after the other in one forked process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for attempt in attempts:
                done = b"1"
                try:
                    attempt()
                except OSError:
                    done = b"0"
                os.write(writing, done)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answers = pipe.read()
    os.waitpid(pid, 0)
    assert len(answers) == len(attempts), f"the process died at attempt {len(answers)}"
    return [answer == ord("1") for answer in answers]


def restricted(allowed: Mapping[Path, Right], *, ports: Sequence[int] = ()) -> Callable[[], object]:
    def attempt() -> None:
        give_up_new_privileges()
        assert restrict(allowed, connect_ports=ports)

    return attempt


def opening(path: Path, flags: int) -> Callable[[], object]:
    return lambda: os.close(os.open(path, flags))


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A directory that the process may write in, and one that it may only read; a file in each."""
    allowed, kept = tmp_path / "allowed", tmp_path / "kept"
    for place in (allowed, kept):
        place.mkdir()
        (place / "file").write_text("what was there")
    return allowed, kept


def test_this_kernel_offers_landlock() -> None:
    assert version() >= 6, "the tests below would show nothing"


def test_a_file_outside_can_be_read_and_neither_written_nor_truncated_nor_removed(
    places: tuple[Path, Path],
) -> None:
    allowed, kept = places
    assert done_in_a_process(
        restricted({allowed: Right.WRITE_FILE}),
        opening(kept / "file", os.O_RDONLY),
        opening(allowed / "file", os.O_RDWR),
    ) == [True, True, True]
    refused = done_in_a_process(
        restricted({allowed: Right.WRITE_FILE}),
        opening(kept / "file", os.O_WRONLY),
        opening(kept / "file", os.O_RDWR),
        opening(kept / "new", os.O_WRONLY | os.O_CREAT),
        opening(allowed / "new", os.O_WRONLY | os.O_CREAT),
        lambda: os.truncate(kept / "file", 0),
        (kept / "file").unlink,
        (allowed / "file").unlink,
        lambda: (kept / "file").rename(kept / "other"),
        lambda: (kept / "link").symlink_to("file"),
        lambda: os.link(kept / "file", allowed / "link"),
        (kept / "folder").mkdir,
        lambda: os.mkfifo(kept / "pipe"),
    )
    assert refused == [True, *[False] * 12]
    assert (kept / "file").read_text() == "what was there"


def test_no_way_back_and_children_inherit_it(places: tuple[Path, Path]) -> None:
    allowed, kept = places

    def in_a_child() -> None:
        if done_in_a_process(opening(kept / "file", os.O_RDWR)) == [False]:
            raise PermissionError

    assert done_in_a_process(
        restricted({allowed: Right.WRITE_FILE}),
        restricted({kept: Right.WRITE_FILE}),
        opening(kept / "file", os.O_RDWR),
        in_a_child,
    ) == [True, True, False, False]


def test_a_descriptor_of_before_and_shared_memory_stay_usable(places: tuple[Path, Path]) -> None:
    _, kept = places
    before = os.open(kept / "file", os.O_RDWR)
    assert done_in_a_process(
        restricted({}),
        lambda: os.pwrite(before, b"W", 0),
        lambda: os.close(os.memfd_create("lane")),
    ) == [True, True, True]
    os.close(before)


def test_no_program_is_started_no_port_connected_and_no_process_disturbed() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    server = socket.create_server(("127.0.0.1", 0))

    def trace() -> None:
        if library.ptrace(_PTRACE_ATTACH, other.pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
        os.waitpid(other.pid, 0)

    def read_memory() -> None:
        os.close(os.open(f"/proc/{other.pid}/mem", os.O_RDONLY))

    attempts = (
        lambda: os.kill(other.pid, 0),
        lambda: os.kill(other.pid, signal.SIGCONT),
        read_memory,
        lambda: socket.create_connection(server.getsockname()).close(),
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    )
    try:
        assert done_in_a_process(*attempts) == [True] * len(attempts), "the machine refuses them anyway"
        assert done_in_a_process(restricted({}), *attempts[1:], trace) == [True, *[False] * 5]
    finally:
        other.kill()
        other.wait()
        server.close()


def test_only_the_port_of_the_collector_can_be_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as collector, socket.create_server(("127.0.0.1", 0)) as other:
        attempts = [
            lambda server=server: socket.create_connection(server.getsockname()).close()
            for server in (collector, other)
        ]
        ports = (collector.getsockname()[1],)
        assert done_in_a_process(restricted({}, ports=ports), *attempts) == [True, True, False]


@pytest.mark.parametrize(
    ("endpoint", "ports"),
    [
        ("", ()),
        ("http://127.0.0.1:4318/base", (4318,)),
        ("http://collector", (80,)),
        ("https://collector/", (443,)),
    ],
)
def test_only_a_services_process_may_connect_and_only_to_the_collector(
    endpoint: str, ports: tuple[int, ...], tmp_path: Path
) -> None:
    settings = Settings(
        data_dir=tmp_path, services=ServicesSettings(processes=1, trace_otlp_endpoint=endpoint)
    )
    assert tuple(ports_of(RoleKind.SERVICES, settings)) == ports
    assert not ports_of(RoleKind.NETPROC, settings)


@pytest.mark.parametrize(
    "endpoint", ["ftp://x", "http://", "x", "http://u@h", "http://h?q", "http://h:99999", "http://["]
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"trace\.otlp\.endpoint"):
        ServicesSettings(trace_otlp_endpoint=endpoint)


def test_capabilities_leave_every_set() -> None:
    assert os.geteuid() == 0, "only a process with capabilities can give them up"
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")

    def check() -> None:
        keep_only({Capability.DAC_READ_SEARCH})
        keep_only({Capability.DAC_READ_SEARCH, Capability.CHOWN})  # which is gone
        told = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
        found = {name: int(told[name], 16) for name in sets}
        wanted = 1 << Capability.DAC_READ_SEARCH
        if found != {"CapInh": 0, "CapPrm": wanted, "CapEff": wanted, "CapBnd": wanted, "CapAmb": 0}:
            raise OSError(str(found))

    assert done_in_a_process(check) == [True]


def test_an_ordinary_user_has_nothing_to_give_up() -> None:
    def check() -> None:
        os.setresuid(65534, 65534, 65534)
        keep_only(frozenset())

    assert done_in_a_process(check) == [True]


@pytest.fixture
def wiring(tmp_path: Path) -> Iterator[Callable[[Settings], Wiring]]:
    with private_directory() as runtime:
        yield lambda settings: Wiring(settings, "appliance-0", runtime, {})


def settings_of(tmp_path: Path, **options: str) -> Settings:
    (tmp_path / "data").mkdir(exist_ok=True)
    return load_settings(
        None, {"data.dir": str(tmp_path / "data")} | {k.replace("_", "."): v for k, v in options.items()}
    )


@pytest.mark.parametrize("kind", [kind for kind in RoleKind if kind is not RoleKind.SUPERVISOR])
def test_each_role_can_write_what_it_needs_and_no_more(
    kind: RoleKind, tmp_path: Path, wiring: Callable[[Settings], Wiring]
) -> None:
    made = wiring(settings_of(tmp_path))
    segment, region = made.settings.data_dir / "0.log", made.runtime_dir / "ring"
    for path in (segment, region):
        path.write_text("bytes")

    def confined() -> None:
        give_up_new_privileges()
        confine(kind, made)

    writes_files = kind not in WRITE_NO_FILES
    assert done_in_a_process(
        confined,
        opening(segment, os.O_RDONLY),
        opening(region, os.O_RDWR),
        opening(segment, os.O_RDWR),
        opening(made.settings.data_dir / "new", os.O_RDWR | os.O_CREAT),
    ) == [True, True, True, writes_files, writes_files]


def test_a_network_process_may_make_sockets_where_its_zeromq_listeners_are(
    tmp_path: Path, wiring: Callable[[Settings], Wiring]
) -> None:
    place = tmp_path / "sockets"
    place.mkdir()
    made = wiring(settings_of(tmp_path, listeners_zeromq=f"ipc://{place}/z"))
    sock = socket.socket(socket.AF_UNIX)

    def confined() -> None:
        give_up_new_privileges()
        confine(RoleKind.NETPROC, made)

    assert done_in_a_process(
        confined,
        lambda: sock.bind(f"{place}/z.0"),
        lambda: os.unlink(place / "z.0"),
        opening(place / "file", os.O_RDWR | os.O_CREAT),
        lambda: socket.socket(socket.AF_UNIX).bind(str(tmp_path / "elsewhere")),
    ) == [True, True, True, False, False]


def test_the_acceptor_makes_the_lane_socket_and_nothing_else_in_the_data_directory(
    tmp_path: Path, wiring: Callable[[Settings], Wiring]
) -> None:
    made = wiring(settings_of(tmp_path, shared_memory_lanes_max="4"))
    data = made.settings.data_dir

    def confined() -> None:
        give_up_new_privileges()
        confine(RoleKind.ACCEPTOR, made)

    assert done_in_a_process(
        confined,
        lambda: socket.socket(socket.AF_UNIX).bind(f"{data}/shared-memory/hello"),
        lambda: socket.socket(socket.AF_UNIX).bind(f"{data}/hello"),
        opening(data / "shared-memory" / "file", os.O_RDWR | os.O_CREAT),
    ) == [True, True, False, False]


def test_what_is_kept_is_what_the_options_ask_for(tmp_path: Path) -> None:
    plain = settings_of(tmp_path)
    assert capabilities_of(RoleKind.NETPROC, plain) == {Capability.DAC_READ_SEARCH}
    assert capabilities_of(RoleKind.COORDINATOR, plain) == {Capability.DAC_READ_SEARCH}
    assert Capability.DAC_OVERRIDE in capabilities_of(RoleKind.IOPROC, plain)
    tcp = settings_of(tmp_path, listeners_zeromq="tcp://127.0.0.1:600", zeromq_tcp_insecure="true")
    assert Capability.NET_BIND_SERVICE in capabilities_of(RoleKind.NETPROC, tcp)
    assert Capability.NET_BIND_SERVICE not in capabilities_of(RoleKind.COORDINATOR, tcp)


def test_a_kernel_that_refuses_leaves_the_process_running_and_says_so(
    tmp_path: Path, wiring: Callable[[Settings], Wiring], caplog: pytest.LogCaptureFixture
) -> None:
    """Without the promise to gain no privileges, and without CAP_SYS_ADMIN, Landlock refuses."""
    made = wiring(settings_of(tmp_path))

    def confined() -> None:
        os.setresuid(65534, 65534, 65534)
        confine(RoleKind.NETPROC, made)
        if "keeps rights that it does not need" not in caplog.text:
            raise OSError(caplog.text)

    assert done_in_a_process(confined) == [True]
    assert set(changes_of(RoleKind.NETPROC, made)) == {Path("/dev/null"), made.runtime_dir}


def calling(number: int, *arguments: int) -> Callable[[], object]:
    def attempt() -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syscall(number, *arguments) < 0 and ctypes.get_errno() == errno.EPERM:
            raise PermissionError(number)

    return attempt


def refusing() -> None:
    give_up_new_privileges()
    refuse_calls()


def test_each_call_of_the_list_is_refused_and_none_was_before() -> None:
    # Arguments that make no sense, so that a call that is not refused fails for another reason, or does nothing. Those
    # that root could do by mistake are left out of the first half.
    harmless = [
        name for name in REFUSED if name not in {"reboot", "syslog", "swapoff", "swapon", "acct", "chroot"}
    ]
    numbers = [
        REFUSED[name]
        for name in harmless
        if not name.startswith(("iopl", "ioperm", "personality", "unshare"))
    ]
    bad = (-1, -1, -1, -1, -1, -1)
    before = done_in_a_process(*(calling(number, *bad) for number in numbers))
    assert sum(before) > len(numbers) * 3 // 4, "most are refused anyway: the second half shows nothing"
    assert done_in_a_process(refusing, *(calling(number, *bad) for number in REFUSED.values())) == [
        True,
        *[False] * len(REFUSED),
    ]


def test_threads_start_and_namespaces_do_not() -> None:
    new_user = 0x10000000

    def run_a_thread() -> None:
        done: list[int] = []
        thread = threading.Thread(target=lambda: done.append(1))
        thread.start()
        thread.join(10)
        if done != [1]:
            raise OSError("no thread")

    assert done_in_a_process(refusing, run_a_thread, calling(56, new_user | signal.SIGCHLD, 0, 0, 0, 0)) == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("family", "allowed"), [(1, True), (2, True), (10, True), (16, True), (38, False), (40, False)]
)
def test_only_families_of_sockets_that_a_broker_has_can_be_made(family: int, allowed: bool) -> None:
    def make() -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if library.socket(family, socket.SOCK_STREAM, 0) < 0 and ctypes.get_errno() == errno.EPERM:
            raise PermissionError(family)

    assert done_in_a_process(make, refusing, make) == [True, True, allowed]


def test_numbers_of_32_bit_programs_do_not_go_round_the_list() -> None:
    assert done_in_a_process(refusing, calling(0x40000000 | 520, -1, -1, -1)) == [True, False]
