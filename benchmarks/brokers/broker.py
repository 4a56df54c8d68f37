"""What the harness asks of a broker: start, address, topics, processes, stop."""

import os
import queue
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec, TopicMetadata  # type: ignore[attr-defined]

from benchmarks import proc
from benchmarks.brokers.setting import AS_SHIPPED, Setting
from benchmarks.load import generators
from benchmarks.void import Void

FIRST_TOPIC = "first"
"""Of the record that is knocked with while a broker starts; made by auto-creation."""
START_PATIENCE_SECONDS = 240.0
STOP_PATIENCE_SECONDS = 30.0
CREATE_PATIENCE_SECONDS = 120.0
HALT_PATIENCE_SECONDS = 1.0
CATCH_UP_SECONDS = 1.0
"""For what a broker that was halted finds overdue."""


class Broker(ABC):
    """One broker of one round. A context manager: entered it runs, left it has stopped."""

    name: str
    keeps_on_disk: bool = True
    keeps_topics: bool = True
    """False: a topic cannot be deleted, so it is started anew each round."""
    wants_warm_up: bool = False
    """It compiles itself while it runs: load comes before the first figure of speed."""

    def __init__(self, data_dir: Path, setting: Setting = AS_SHIPPED) -> None:
        self.data_dir = data_dir
        self.setting = setting
        self.address = ""
        self.knocks_at = FIRST_TOPIC
        """The topic whose partition 0 the first record after a start goes to."""
        self.start_seconds = 0.0
        """From its exec to its own word that it is ready."""
        self.first_ack_seconds: float | None = None
        """From its exec to the first acknowledged record; None when nobody knocked."""

    @abstractmethod
    def start(self) -> None:
        """Run it; returns when it says that it is ready. Raises Void when it does not come up."""

    @abstractmethod
    def stop(self) -> None:
        """End it and wait until it is gone."""

    @abstractmethod
    def pids(self) -> list[int]:
        """All its processes."""

    @abstractmethod
    def version(self) -> str:
        """As it names itself."""

    def lanes(self) -> dict[str, str]:
        """Ways in beside TCP that clients of this host have: `zeromq` an endpoint, `lane` a data directory."""
        return {}

    def doors(self) -> dict[str, str]:
        """Addresses of listeners beside `address`, under the setting `secure`: `tls`, `sasl`, `sasl_tls`; and `ca`, the
        PEM file of the authority that signed their certificate."""
        return {}

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create, and wait until every partition has a leader. Raises Void."""
        create_topics(self.address, [topic], partitions, replicas=self.setting.slots)

    def end_offset(self, topic: str, partitions: int) -> int:
        """The sum of the end offsets of all partitions: records in the topic. Raises Void."""
        return end_offset(self.address, topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """Delete it, so that its bytes are in nobody's way. Raises Void."""
        delete_topic(self.address, topic)

    def kill(self) -> None:
        """SIGKILL to every process at once. `start()` brings it back on the same data directory."""
        raise Void(f"{self.name} cannot be killed from here")

    def slot_pids(self, slot: int) -> list[int]:
        """The processes of one slot, counted from 0."""
        raise Void(f"{self.name} has no slots")

    def stop_slot(self, slot: int) -> None:
        """Ends one slot, counted from 0, in good order, as its operator would; the others go on."""
        raise Void(f"{self.name} has no slots")

    def start_slot(self, slot: int) -> None:
        """Begins to start it again; when it serves, Metadata says."""
        raise Void(f"{self.name} has no slots")

    def fixture_seconds(self, count: int) -> list[float]:
        """Start `count` brokers one after another, each on an empty directory, as a test's fixture does.

        Return the seconds of each from the call to the first acknowledged record. Raises Void.
        """
        raise Void(f"{self.name} has no fixture")

    def is_alive(self) -> bool:
        """Whether its first process runs."""
        return True

    def rest(self) -> None:  # noqa: B027 (who uses nothing anyway has nothing to do)
        """Use nothing of the machine while another one is measured, until `wake`."""

    def wake(self) -> None:  # noqa: B027 (as `rest`)
        """Be as before `rest`."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class SpawnedBroker(Broker):
    """A broker that is a process of ours with a line on its standard output that says it is ready."""

    ready_word = "ready"
    can_be_halted = False
    """Whether its processes may be stopped for minutes, and go on as if nothing had been."""

    def __init__(self, data_dir: Path, setting: Setting = AS_SHIPPED) -> None:
        super().__init__(data_dir, setting)
        self.process: subprocess.Popen[str] | None = None
        self.started_at_ns = 0
        self._rests = False
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._last: deque[str] = deque(maxlen=20)

    def start(self) -> None:
        words = self.command()
        if self.setting.broker_cpus:
            words = ["taskset", "-c", ",".join(map(str, self.setting.broker_cpus)), *words]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment.update(self.environment())
        self._said = queue.SimpleQueue()
        self._last.clear()
        self._rests = False
        self.started_at_ns = time.monotonic_ns()
        try:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                cwd=self.data_dir,
                start_new_session=True,
            )
        except OSError as error:
            raise Void(f"{self.name} cannot be started: {error}") from error
        assert self.process.stdout is not None
        threading.Thread(target=_read, args=(self.process.stdout, self._said), daemon=True).start()
        # Of several brokers another one may lead the partition, which a knocker does not ask for.
        knows_whom = self.address and self.setting.slots == 1
        knocker = generators.Knocker(self.address, self.knocks_at) if knows_whom else None
        try:
            self._await_ready()
        except Void:
            if knocker:
                knocker.cancel()
            raise
        self.start_seconds = (time.monotonic_ns() - self.started_at_ns) / 1e9
        if knocker:
            self.first_ack_seconds = (knocker.acked_at_ns() - self.started_at_ns) / 1e9

    def stop(self) -> None:
        if self.process is None:
            return
        self._go_on()
        family = proc.descendants(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            # Only after its time is up, and only those that it had started.
            for pid in reversed(family):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._bury(family)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None

    def rest(self) -> None:
        if self.can_be_halted and not self._rests and self.is_alive():
            self._rests = True
            self._signal_all(signal.SIGSTOP)
            # The signal is on its way when `kill` returns.
            until = time.monotonic() + HALT_PATIENCE_SECONDS
            while not all(map(proc.is_halted, self.pids())) and time.monotonic() < until:
                time.sleep(0.001)

    def wake(self) -> None:
        if self._rests:
            self._go_on()
            time.sleep(CATCH_UP_SECONDS)
            self.await_leaders()

    def await_leaders(self) -> None:
        """After a rest: until it serves everything again. Raises Void."""

    def _go_on(self) -> None:
        if self._rests and self.is_alive():
            self._signal_all(signal.SIGCONT)
        self._rests = False

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        assert self.process is not None, "not started"
        self._rests = False
        # The parent first: nobody is left who would start the others again.
        family = proc.descendants(self.process.pid)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._bury(family)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None

    def _bury(self, family: list[int]) -> None:
        assert self.process is not None, "not started"
        self.process.wait()
        proc.bury(family[1:])

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pids(self) -> list[int]:
        assert self.process is not None, "not started"
        return proc.descendants(self.process.pid)

    @abstractmethod
    def command(self) -> list[str]:
        """What to execute. Sets `address` when that is known before the start."""

    def environment(self) -> dict[str, str]:
        """What is added to the environment."""
        return {}

    def on_ready(self, line: str) -> None:
        """Called once, with its ready line."""

    def next_line(self, until: float) -> str | None:
        """The next line of its output; None when it ended or `until` (monotonic seconds) passed."""
        try:
            line = self._said.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None
        self._last.append(line)
        return line or None

    def _await_ready(self) -> None:
        until = time.monotonic() + START_PATIENCE_SECONDS
        while line := self.next_line(until):
            if self.ready_word in line:
                self.on_ready(line)
                return
        self.stop()
        raise Void(f"{self.name} did not come up: {''.join(self._last).strip()[-800:] or 'it said nothing'}")


def _read(stream: IO[str], said: "queue.SimpleQueue[str]") -> None:
    """In a thread of its own, so that the pipe is never full. An empty line is the end."""
    for line in stream:
        said.put(line)
    said.put("")


def free_port(in_a_row: int = 1) -> int:
    """A loopback port that the kernel had free a moment ago, and the ones after it."""
    while True:
        with ExitStack() as probes:
            port = 0
            try:
                for number in range(in_a_row):
                    probe = probes.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port + number if number else 0))
                    port = port or probe.getsockname()[1]
            except OSError:
                continue
            return port


def create_topics(address: str, topics: Sequence[str], partitions: int, *, replicas: int = 1) -> None:
    """Many at once, and wait until every partition of all has a leader. Raises Void."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    wanted = [NewTopic(topic, num_partitions=partitions, replication_factor=replicas) for topic in topics]
    patience = CREATE_PATIENCE_SECONDS
    try:
        made = admin.create_topics(wanted, request_timeout=patience, operation_timeout=patience)
        for created in made.values():
            created.result(patience)
        until = time.monotonic() + patience
        while time.monotonic() < until:
            known = (
                admin.list_topics(topics[0], timeout=30)
                if len(topics) == 1
                else admin.list_topics(timeout=30)
            ).topics
            led = all(topic in known and _is_led(known[topic], partitions) for topic in topics)
            if led and _answers(admin, topics, partitions):
                return
            time.sleep(0.05)
        raise Void(f"{topics[0]} and its like had no leaders in time")
    except (KafkaException, TimeoutError) as error:
        raise Void(f"{topics[0]} or its like was not created: {error}") from error


def await_leaders(address: str) -> None:
    """Until every partition of every topic has a leader. Raises Void."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    until = time.monotonic() + CREATE_PATIENCE_SECONDS
    try:
        while time.monotonic() < until:
            topics = admin.list_topics(timeout=30).topics.values()
            if all(_is_led(topic, len(topic.partitions)) for topic in topics):
                return
            time.sleep(0.1)
    except KafkaException as error:
        raise Void(f"it was halted, and does not answer since: {error}") from error
    raise Void("it was halted, and has no leaders since")


def create_on_first(address: str, topic: str) -> None:
    """One partition without further replicas, led by the broker of the lowest id. Raises Void."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        first = min(admin.list_topics(timeout=30).brokers)
        wanted = NewTopic(topic, num_partitions=1, replica_assignment=[[first]])
        admin.create_topics([wanted], operation_timeout=30)[topic].result(60)
        until = time.monotonic() + CREATE_PATIENCE_SECONDS
        while not _answers(admin, [topic], 1):
            if time.monotonic() > until:
                raise Void(f"{topic} had no leader in time")
            time.sleep(0.05)
    except (KafkaException, TimeoutError) as error:
        raise Void(f"{topic} was not created: {error}") from error


def delete_topic(address: str, topic: str) -> None:
    """Through the admin API of confluent-kafka. Raises Void."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    except (KafkaException, TimeoutError) as error:
        raise Void(f"topic {topic} was not deleted: {error}") from error


def _answers(admin: AdminClient, topics: Sequence[str], partitions: int) -> bool:
    """Whether each leader serves already: a broker may be named as leader a moment before it knows."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, number): latest for topic in topics for number in range(partitions)}
    try:
        for found in admin.list_offsets(wanted).values():
            found.result(30)
    except KafkaException:
        return False
    return True


def _is_led(topic: TopicMetadata, partitions: int) -> bool:
    leaders = [found.leader for found in topic.partitions.values()]
    return topic.error is None and len(leaders) == partitions and min(leaders) >= 0


def end_offset(address: str, topic: str, partitions: int) -> int:
    """Sum of the latest offsets by ListOffsets. Raises Void."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, number): latest for number in range(partitions)}
    try:
        return sum(int(found.result(30).offset) for found in admin.list_offsets(wanted).values())
    except (KafkaException, TimeoutError) as error:
        raise Void(f"end offsets of {topic} were not told: {error}") from error
