"""The checks of `make test-systemd`, run inside of the machine that boot.py has booted. Prints a line for each.

A check is a function that raises AssertionError, or whatever else went wrong. They run in order, on one service.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOP: Final = Path("/opt/appliance")
COMMAND: Final = str(TOP / "bin" / "appliance")
CONFIG: Final = Path("/etc/appliance/appliance.toml")
DATA: Final = Path("/var/lib/appliance")
DROP_INS: Final = Path("/etc/systemd/system/appliance.service.d")
UNIT: Final = "appliance.service"
SLICE: Final = "appliance.slice"
ADDRESS: Final = "127.0.0.1:9092"
TOPIC: Final = "kept"
EXPOSURE_MAX: Final = 2.0
PATIENCE_S: Final = 60.0


def run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    if check and done.returncode:
        raise AssertionError(
            f"{' '.join(command)}: {done.returncode}: {done.stdout[-800:]}{done.stderr[-800:]}"
        )
    return done.stdout


def shown(name: str, unit: str = UNIT) -> str:
    """A property of a unit."""
    return run("systemctl", "show", "-P", name, unit).strip()


def until(true: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}; {journal(15)}"
        time.sleep(0.05)


def journal(lines: int) -> str:
    return run(
        "journalctl",
        "-u",
        UNIT,
        "-u",
        "zookeeper.service",
        "-n",
        str(lines),
        "--no-pager",
        "-o",
        "cat",
        check=False,
    )


def processes() -> dict[str, int]:
    """Role → process id of all that live."""
    told = json.loads(run(COMMAND, "status", "--data-dir", str(DATA), "--json", check=False) or "{}")
    return {each["role"]: each["pid"] for each in told.get("processes", ()) if each["pid"]}


def configure(**settings: object) -> None:
    settings = {"metadata.store": "embedded", **settings}
    CONFIG.write_text(
        "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items())
    )
    CONFIG.chmod(0o644)


def drop_in(name: str, text: str) -> None:
    DROP_INS.mkdir(exist_ok=True)
    (DROP_INS / f"{name}.conf").write_text(text)
    run("systemctl", "daemon-reload")


def without_drop_in(name: str) -> None:
    (DROP_INS / f"{name}.conf").unlink(missing_ok=True)
    run("systemctl", "daemon-reload")


def stopped() -> None:
    """Stop the service and its socket, and forget how often they were started."""
    run("systemctl", "stop", UNIT, "appliance.socket")
    run("systemctl", "reset-failed", UNIT, check=False)


def restart() -> None:
    """Restart the service; the checks do so more often than its limit of starts allows."""
    run("systemctl", "reset-failed", UNIT, check=False)
    run("systemctl", "restart", UNIT)


def acked(count: int = 1) -> None:
    """Write records with acks=all."""
    producer = Producer({"bootstrap.servers": ADDRESS, "acks": "all", "delivery.timeout.ms": 30_000})
    failed: list[object] = []
    for _ in range(count):
        producer.produce(TOPIC, b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(40) == 0
    assert not failed, failed


class Load:
    """An idempotent producer with acks=all, and a group that reads, both from entering to leaving."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._ended = threading.Event()
        self._written = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.acked: list[int] = []
        self.read: list[int] = []
        self.failed: list[str] = []

    def __enter__(self) -> Load:
        admin = AdminClient({"bootstrap.servers": ADDRESS})
        for future in admin.create_topics([NewTopic(self._topic, 1, 1)]).values():
            future.result(30)
        self._writer.start()
        self._reader.start()
        until(lambda: len(self.acked) > 100, "the load has begun")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            done = len(self.acked)
            until(lambda: len(self.acked) > done + 100, "the load continues")
        self._ended.set()
        self._writer.join(60)
        self._written.set()
        self._reader.join(60)
        if kind is None:
            assert not self.failed, self.failed[:3]
            first = next(
                (
                    at
                    for at, pair in enumerate(zip(self.read, self.acked, strict=False))
                    if pair[0] != pair[1]
                ),
                -1,
            )
            assert self.read[: len(self.acked)] == self.acked, (
                f"lost, twice or out of order: {len(self.read)} read, {len(self.acked)} acknowledged, first at {first}:"
                f" {self.read[first - 2 : first + 5]}, {self.acked[first - 2 : first + 5]}"
            )

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": ADDRESS,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "delivery.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        number = 0

        def delivered(error: object, message: Any) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acked.append(int(message.value()))

        while not self._ended.is_set():
            producer.produce(self._topic, b"%d" % number, on_delivery=delivered)
            number += 1
            producer.poll(0.002)
        producer.flush(60)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": ADDRESS,
                "group.id": f"of-{self._topic}",
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._written.is_set() or len(self.read) < len(self.acked):
            message = consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is None:
                self.read.append(int(message.value() or b""))
            elif not error.retriable() and error.name() not in (
                "_ALL_BROKERS_DOWN",
                "_TRANSPORT",
                "_RESOLVE",
            ):
                self.failed.append(str(error))
        consumer.close()


# The checks


def boots() -> str:
    """systemd is process 1 and has come up"""
    until(
        lambda: run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded"), "boot"
    )
    assert Path("/proc/1/comm").read_text().strip() == "systemd"
    return run("systemctl", "--version").splitlines()[0]


def units_are_valid() -> str:
    """systemd-analyze verify has nothing to say, and the exposure is at most 2.0"""
    run("systemd-sysusers")
    run("systemd-tmpfiles", "--create", "appliance.conf")
    configure()
    run("systemctl", "daemon-reload")
    for unit in (UNIT, "appliance.socket", SLICE):
        said = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
        )
        assert said.returncode == 0, said.stderr
        assert not said.stderr.strip(), said.stderr
    security = run("systemd-analyze", "security", "--no-pager", UNIT, check=False)
    (exposure,) = re.findall(r"exposure level for \S+: ([0-9.]+)", security)
    assert float(exposure) <= EXPOSURE_MAX, security
    return f"exposure {exposure}"


def notify() -> str:
    """`systemctl start` returns when clients are served, and the state is one line"""
    begin = time.monotonic()
    run("systemctl", "start", UNIT)
    took = time.monotonic() - begin
    with socket.create_connection(("127.0.0.1", 9092), 1):
        pass
    assert shown("ActiveState") == "active"
    assert shown("StatusText") == "serving"
    assert shown("Type") == "notify"
    admin = AdminClient({"bootstrap.servers": ADDRESS})
    for future in admin.create_topics([NewTopic(TOPIC, 2, 1)]).values():
        future.result(30)
    acked(10)
    return f"{took:.1f} s"


def control_group() -> str:
    """all processes are the service's, under its slice, as its user, and are counted"""
    group = shown("ControlGroup")
    assert group == f"/{SLICE}/appliance.service", group
    assert shown("Slice") == SLICE
    assert shown("ActiveState", SLICE) == "active"
    assert shown("FragmentPath", SLICE).endswith(f"/{SLICE}"), "systemd made the slice without a file"
    listed = set(map(int, Path(f"/sys/fs/cgroup{group}/cgroup.procs").read_text().split()))
    living = processes()
    assert len(living) >= 6, living
    assert set(living.values()) <= listed, f"{living} are not all of {listed}"
    user = int(run("id", "-u", "appliance"))
    for role, pid in living.items():
        assert Path(f"/proc/{pid}").stat().st_uid == user, f"{role} runs as another user"
    tasks = "tasks are not counted on this host"
    if "pids" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split():
        tasks = f"{shown('TasksCurrent')} tasks"
        current = int(shown("TasksCurrent"))
        assert len(living) <= current < int(shown("TasksMax")), current
        assert int(shown("TasksCurrent", SLICE)) >= len(living), "the slice counts the service's tasks"
    return f"{len(living)} processes; {tasks}"


def journal_fields() -> str:
    """lines in the journal have priority, identifier, unit and an explanation, and no prefix"""
    pid = processes()["netproc 0"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: processes().get("netproc 0", pid) != pid, "netproc is back")
    found = [
        json.loads(line) for line in run("journalctl", "-u", UNIT, "-o", "json", "--no-pager").splitlines()
    ]
    ours = [each for each in found if each.get("SYSLOG_IDENTIFIER") == "appliance"]
    (killed,) = [each for each in ours if f"(pid {pid})" in each["MESSAGE"]]
    assert killed["PRIORITY"] == "4", killed
    assert killed["_SYSTEMD_UNIT"] == UNIT
    assert not [each for each in ours if re.match(r"<\d>", each["MESSAGE"])]
    assert {each["PRIORITY"] for each in ours if "running again" in each["MESSAGE"]} == {"6"}
    run("journalctl", "--update-catalog")
    chosen = (f"MESSAGE_ID={killed['MESSAGE_ID']}", f"PEER_PID={pid}")
    explained = run("journalctl", "-x", "--no-pager", *chosen)
    assert "A process died and was restarted" in explained, explained
    assert f"netproc 0 (pid {pid})" in " ".join(explained.split()), explained
    assert "@" not in explained, "each value was filled in"
    return f"{len(ours)} lines"


def kill_every_process() -> str:
    """kill -9 of every process: it is restarted, clients continue, and systemd restarts nothing"""
    restarts = shown("NRestarts")
    with Load("killed"):
        for role, pid in processes().items():
            if role == "supervisor":
                continue
            os.kill(pid, signal.SIGKILL)
            until(lambda role=role, pid=pid: processes().get(role, pid) != pid, f"{role} is back")  # type: ignore[misc]
        until(lambda: shown("StatusText") == "serving", "it serves")
    assert shown("NRestarts") == restarts
    return f"{len(processes()) - 1} processes"


def kill_supervisor() -> str:
    """kill -9 of the supervisor: systemd starts the service again, and nothing is lost"""
    restarts, pid = int(shown("NRestarts")), int(shown("MainPID"))
    with Load("orphaned"):
        os.kill(pid, signal.SIGKILL)
        until(
            lambda: shown("ActiveState") == "active" and shown("MainPID") not in ("0", str(pid)), "it is back"
        )
    assert int(shown("NRestarts")) == restarts + 1
    return f"restart {restarts + 1}"


def watchdog() -> str:
    """a process that hangs is restarted by the supervisor, a supervisor that hangs by systemd"""
    drop_in("watchdog", "[Service]\nWatchdogSec=3s\n")
    restart()
    pid = processes()["netproc 0"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: processes().get("netproc 0", pid) != pid, "netproc is replaced", 30)
    restarts, supervisor = int(shown("NRestarts")), int(shown("MainPID"))
    os.kill(supervisor, signal.SIGSTOP)
    until(
        lambda: int(shown("NRestarts")) > restarts and shown("ActiveState") == "active",
        "systemd restarts it",
        30,
    )
    assert "watchdog" in run("journalctl", "-u", UNIT, "--no-pager", "-n", "60").lower()
    acked()
    without_drop_in("watchdog")
    restart()
    return "both"


def reload() -> str:
    """`systemctl reload`: settings count, connections stay, a bad file changes nothing and is told"""
    pid = shown("MainPID")
    with socket.create_connection(("127.0.0.1", 9092), 1) as connection:
        configure(**{"log.retention.ms": 1234567, "num.partitions": 7})
        run("systemctl", "reload", UNIT)
        until(
            lambda: "1234567" in run(COMMAND, "configs", "describe", "--broker", "0"),
            "the new value counts",
            10,
        )
        assert "restart for num.partitions" in journal(20)
        configure(**{"log.retention.ms": "soon"})
        run("systemctl", "reload", UNIT, check=False)
        until(lambda: "log.retention.ms" in shown("StatusText"), "the refusal is in the state", 10)
        assert "1234567" in run(COMMAND, "configs", "describe", "--broker", "0")
        connection.settimeout(0.2)
        with suppress(TimeoutError):
            assert connection.recv(1), "the connection was closed"
    configure()
    run("systemctl", "reload", UNIT)
    until(lambda: shown("StatusText") == "serving", "the state is good again", 10)
    assert shown("MainPID") == pid
    assert shown("ActiveState") == "active"
    acked()
    return f"pid {pid}"


def certificates() -> str:
    """new certificates count for new connections, without a restart"""
    tls = Path("/etc/appliance/tls")
    tls.mkdir(exist_ok=True)
    first = certificate(tls)
    listeners = ["PLAINTEXT://127.0.0.1:9092", "SSL://127.0.0.1:9192"]
    files = {"ssl.certificate.file": str(tls / "server.pem"), "ssl.key.file": str(tls / "server.key")}
    configure(listeners=listeners, **files)
    restart()
    pid = shown("MainPID")
    assert served() == first
    second = certificate(tls)
    run("systemctl", "reload", UNIT)
    until(lambda: served() == second, "the new certificate is served", 10)
    assert shown("MainPID") == pid
    configure()
    restart()
    return "two certificates"


def certificate(directory: Path) -> bytes:
    """Makes a key and a certificate signed by itself; its DER bytes."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "machine")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / "server.key").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    (directory / "server.pem").write_bytes(made.public_bytes(encoding))
    run("chown", "-R", "appliance:appliance", str(directory))
    return made.public_bytes(serialization.Encoding.DER)


def served() -> bytes:
    """The certificate that the TLS listener shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", 9192), 5) as raw,
        context.wrap_socket(raw, server_hostname="machine") as secured,
    ):
        return secured.getpeercert(True) or b""
    return b""


def socket_activation() -> str:
    """with the socket unit a restart refuses no connection, and clients lose nothing"""
    run("systemctl", "stop", UNIT)
    run("systemctl", "start", "appliance.socket")
    run("systemctl", "start", UNIT)
    refused: list[str] = []
    tried = 0
    ended = threading.Event()

    def connect() -> None:
        nonlocal tried
        while not ended.is_set():
            tried += 1
            try:
                socket.create_connection(("127.0.0.1", 9092), 30).close()
            except OSError as error:
                refused.append(str(error))
            time.sleep(0.01)

    with Load("activated"):
        knocking = threading.Thread(target=connect)
        knocking.start()
        for _ in range(2):
            restart()
        ended.set()
        knocking.join(60)
    assert not refused, refused[:3]
    assert tried > 50, "the restarts took less than the test needs"
    return f"{tried} connections over two restarts"


def upgrade() -> str:
    """an upgrade under traffic: a restart with another version loses nothing"""
    current = TOP / "current"
    run("systemctl", "stop", UNIT)
    version(current, "old")
    run("systemctl", "start", UNIT)
    with Load("upgraded"):
        version(current, "new")
        restart()
        until(lambda: shown("StatusText") == "serving", "the new version serves")
    acked()
    return "old to new"


def version(current: Path, name: str) -> None:
    current.unlink()
    current.symlink_to(name)


def clean_stop() -> str:
    """`systemctl stop` is clean: exit code 0, logs marked clean, nothing left"""
    before = processes()
    begin = time.monotonic()
    run("systemctl", "stop", UNIT, "appliance.socket")
    took = time.monotonic() - begin
    assert shown("Result") == "success"
    assert shown("ExecMainStatus") == "0"
    assert (DATA / "slot-0" / ".kafka_cleanshutdown").exists()
    left = [role for role, pid in before.items() if Path(f"/proc/{pid}").exists()]
    assert not left, left
    return f"{took:.1f} s"


def wrong_configuration() -> str:
    """a wrong configuration ends the start at once, with exit code 2, and systemd does not try again"""
    stopped()
    configure(**{"num.partitions": "many"})
    run("systemctl", "start", UNIT, check=False)
    time.sleep(1)
    assert shown("ActiveState") == "failed", shown("ActiveState")
    assert shown("ExecMainStatus") == "2"
    assert shown("NRestarts") == "0"
    configure()
    run("systemctl", "reset-failed", UNIT)
    return "exit code 2"


def zookeeper_order() -> str:
    """with ZooKeeper on this host the appliance starts after it and stops before it"""
    if not Path("/opt/java/bin/java").exists() or not Path("/opt/zookeeper").is_dir():
        raise AssertionError(
            "Java or ZooKeeper is not installed on the host: run scripts/install-zookeeper.sh"
        )
    Path("/etc/zoo.cfg").write_text(
        "tickTime=200\ndataDir=/var/lib/zookeeper\nclientPort=2181\nadmin.enableServer=false\n"
    )
    # Ready when its port answers, as Debian's unit is not; else the order would say little.
    Path("/etc/systemd/system/zookeeper.service").write_text(
        "[Service]\nStateDirectory=zookeeper\n"
        "ExecStart=/opt/java/bin/java -Xmx128m -cp /opt/zookeeper/*"
        " org.apache.zookeeper.server.quorum.QuorumPeerMain /etc/zoo.cfg\n"
        "ExecStartPost=/usr/bin/timeout 60 /bin/bash -c"
        " 'until (exec 3<>/dev/tcp/127.0.0.1/2181) 2>/dev/null; do sleep 0.1; done'\n"
        "SuccessExitStatus=143\n"
    )
    stopped()
    drop_in(
        "zookeeper",
        (TOP / "zookeeper.conf").read_text() + "[Service]\nStateDirectory=\nStateDirectory=appliance-zk\n",
    )
    configure(**{"metadata.store": "zookeeper", "zookeeper.connect": "127.0.0.1:2181"})
    run("systemctl", "reset-failed", UNIT, check=False)
    run("systemctl", "start", UNIT)
    try:
        acked(5)
        started = int(shown("ExecMainStartTimestampMonotonic"))
        assert int(shown("ActiveEnterTimestampMonotonic", "zookeeper.service")) <= started
        run("systemctl", "restart", "zookeeper.service")
        assert shown("ActiveState") == "active", "a restart of ZooKeeper does not stop the appliance"
        acked(5)
        run("systemctl", "stop", "zookeeper.service", UNIT)
        ended = int(shown("InactiveEnterTimestampMonotonic"))
        assert ended <= int(shown("InactiveExitTimestampMonotonic", "zookeeper.service")) or ended <= int(
            shown("InactiveEnterTimestampMonotonic", "zookeeper.service")
        )
        assert shown("Result") == "success"
    finally:
        run("systemctl", "stop", UNIT, check=False)
        without_drop_in("zookeeper")
        configure()
    return "started after, stopped before"


CHECKS: Final[tuple[Callable[[], str], ...]] = (
    boots,
    units_are_valid,
    notify,
    control_group,
    journal_fields,
    kill_every_process,
    kill_supervisor,
    watchdog,
    reload,
    certificates,
    socket_activation,
    upgrade,
    clean_stop,
    wrong_configuration,
    zookeeper_order,
)
FIRST: Final = frozenset({"boots", "units_are_valid", "notify"})


def main(only: str) -> int:
    """Run the checks named in `only`, or all of them."""
    wanted = set(filter(None, only.split(",")))
    if unknown := wanted - {check.__name__ for check in CHECKS}:
        print(f"no such check: {', '.join(sorted(unknown))}")
        return 2
    failed = 0
    for check in CHECKS:
        if wanted and check.__name__ not in wanted | FIRST:
            continue
        text = " ".join((check.__doc__ or "").split())
        begin = time.monotonic()
        try:
            found = check()
        except Exception as fault:
            failed += 1
            print(f"FAILED  {check.__name__}: {text}\n        {type(fault).__name__}: {fault}", flush=True)
            print("        " + "\n        ".join(journal(25).splitlines()), flush=True)
        else:
            print(f"ok      {check.__name__}: {text} ({found}; {time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{failed} checks failed" if failed else "all checks passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
