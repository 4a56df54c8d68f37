"""`kill -9` of each process under load from idempotent producers: what was acknowledged is there, once, in order."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import uuid4

import psutil
import pytest
from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer

from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.support.broker import Appliance
from tests.support.pace import Pace
from tests.support.raw_fetch import fetch
from tests.support.store import is_zookeeper_asked_for
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import create_topic, generations, produce, wait_until

# From the kill to the acknowledgement of a record of somebody who asks again at once. On a ZooKeeper the promise is
# another: that nobody waits for the end of the session that was left, which lives 18 s.
BACK_WITHIN_S: Final = 6.0 if is_zookeeper_asked_for() else 2.0
# Clients give a record up after this long; nothing here may last so long.
DELIVERY_TIMEOUT_S: Final = 30
# The same for a record of each producer. Clients wait between attempts to connect, and librdkafka, when its only broker
# is gone, takes up to 1.5 s to ask for the cluster anew: theirs comes on top of ours.
CLIENTS_BACK_WITHIN_S: Final = 8.0
PACE_S: Final = 0.002
RECORDS_AT_ONCE: Final = 5
# A client that gets less of the processor than it would need does not heap up records until the oldest are given up.
WAITING_MAX: Final = 5_000
FILLER: Final = bytes(300)
BEFORE_THE_KILL: Final = 500
AFTER_THE_KILL: Final = 500

ROLES: Final = (
    "acceptor",
    "netproc 0",
    "netproc 1",
    "ioproc 0.0",
    "purgatory",
    "controller",
    "coordinator",
    "cleaner",
)


class Load:
    """Sends numbered records one after another until it is told to stop; what was acknowledged, and what went wrong."""

    name: str

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acked: list[int] = []
        self.last_acked = -1
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(PACE_S):
                self.poll()
                for _ in range(RECORDS_AT_ONCE if self.sent - self.last_acked < WAITING_MAX else 0):
                    value = b"%s %d " % (self.name.encode(), self.sent) + FILLER
                    self.send(value, self._delivered(self.sent))
                    self.sent += 1
            self.finish()
        except Exception as error:
            self.failures.append(repr(error))

    def _delivered(self, number: int) -> Callable[[str | None], None]:
        def told(error: str | None) -> None:
            if error is None:
                self.acked.append(number)
                self.last_acked = number
            else:
                self.failures.append(f"record {number}: {error}")

        return told

    def stop(self) -> None:
        """Waits until every record is acknowledged or given up."""
        self._stop.set()
        self._thread.join(DELIVERY_TIMEOUT_S + 10)
        assert not self._thread.is_alive()

    def poll(self) -> None:
        """Has the client say what it has heard, if it does not do so by itself."""

    def send(self, value: bytes, told: Callable[[str | None], None]) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


class ConfluentLoad(Load):
    """librdkafka with its defaults, but for idempotence."""

    name = "confluent"

    def __init__(self, address: str, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
                "error_cb": self._on_error,
                "log_level": 0,
            }
        )
        super().__init__(topic)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(f"fatal: {error}")

    def send(self, value: bytes, told: Callable[[str | None], None]) -> None:
        def on_delivery(error: KafkaError | None, _: Any) -> None:
            told(None if error is None else str(error))

        self._producer.produce(self.topic, value, partition=0, on_delivery=on_delivery)

    def poll(self) -> None:
        self._producer.poll(0)

    def finish(self) -> None:
        assert self._producer.flush(DELIVERY_TIMEOUT_S) == 0


class KafkaPythonLoad(Load):
    """kafka-python with its defaults, which are idempotent."""

    name = "kafka-python"

    def __init__(self, address: str, topic: str) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=address,
            enable_idempotence=True,
            acks="all",
            delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000,
        )
        super().__init__(topic)

    def send(self, value: bytes, told: Callable[[str | None], None]) -> None:
        future = self._producer.send(self.topic, value, partition=0)
        future.add_callback(lambda _: told(None))
        future.add_errback(lambda error: told(repr(error)))

    def finish(self) -> None:
        self._producer.flush(DELIVERY_TIMEOUT_S)
        self._producer.close(5)


def read_back(broker: Appliance, topic: str) -> list[Record]:
    """Every record of the partition, as it lies in the log."""
    found: list[Record] = []
    with WireSocket(broker.port, timeout_s=30) as connection:
        while True:
            offset = found[-1].offset + 1 if found else 0
            data = fetch(connection, topic, 0, offset=offset)
            position = 0
            fresh: list[Record] = []
            while position < len(data):
                length = int.from_bytes(data[position + 8 : position + 12], "big") + 12
                if position + length > len(data):
                    break
                fresh += [record for record in decode_records(data, position) if record.offset >= offset]
                position += length
            if not fresh:
                return found
            found += fresh


def check(broker: Appliance, topic: str, loads: list[Load]) -> None:
    """What was acknowledged is there once and in order; nothing is there twice; offsets are dense."""
    for load in loads:
        load.stop()
    assert [failure for load in loads for failure in load.failures] == []
    records = read_back(broker, topic)
    assert [record.offset for record in records] == list(range(len(records)))
    for load in loads:
        own = [
            int((record.value or b"").split()[1])
            for record in records
            if (record.value or b"").startswith(load.name.encode())
        ]
        assert own == sorted(set(own)), f"{load.name}: out of order or doubled"
        lost = set(load.acked) - set(own)
        assert not lost, f"{load.name} lost {sorted(lost)[:10]} of {len(load.acked)}"
        assert len(load.acked) == load.sent


def both(broker: Appliance, topic: str) -> list[Load]:
    return [ConfluentLoad(broker.address, topic), KafkaPythonLoad(broker.address, topic)]


def have_acked(loads: list[Load], numbers: list[int]) -> bool:
    return all(
        load.failures or load.last_acked >= number for load, number in zip(loads, numbers, strict=True)
    )


def go_on(loads: list[Load], records: int) -> None:
    numbers = [load.last_acked + records for load in loads]
    wait_until(lambda: have_acked(loads, numbers), "more acknowledgements", timeout_s=DELIVERY_TIMEOUT_S)


def seconds_until_back(loads: list[Load]) -> float:
    """From now until both acknowledge what they will send next."""
    began = time.monotonic()
    numbers = [load.sent for load in loads]
    wait_until(lambda: have_acked(loads, numbers), "acknowledgements", timeout_s=DELIVERY_TIMEOUT_S)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("kills") / "data")
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


@pytest.fixture
def topic(broker: Appliance) -> str:
    name = f"t-{uuid4().hex[:8]}"
    assert create_topic(broker.port, name, partitions=2) == 0
    return name


def test_no_process_is_spared(broker: Appliance) -> None:
    """The supervisor has tests of its own below."""
    assert set(ROLES) == set(generations(broker)) - {"supervisor"}


def test_acknowledged_records_survive_kills_of_everything_in_turn(broker: Appliance, topic: str) -> None:
    loads = both(broker, topic)
    for role in ROLES:
        go_on(loads, 20)
        kill_and_wait(broker, role)
    go_on(loads, AFTER_THE_KILL)
    check(broker, topic, loads)


def kill_and_wait(broker: Appliance, role: str) -> None:
    """Until its next life has begun; who has none has no process id."""
    pid, generation = generations(broker)[role]
    os.kill(pid, signal.SIGKILL)

    def lives() -> bool:
        now_pid, now_generation = generations(broker).get(role, (0, 0))
        return bool(now_pid) and now_generation > generation

    wait_until(lives, f"{role} is restarted", timeout_s=30)


def has_ended(process: psutil.Process) -> bool:
    """Also when nobody has asked for its exit code yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def seconds_until_served(broker: Appliance, topic: str, began: float) -> float:
    """From `began` until somebody who asks again at once has a record acknowledged."""

    def is_acknowledged() -> bool:
        try:
            with WireSocket(broker.port, timeout_s=1) as connection:
                return produce(connection, topic, encode_batch([Record(b"probe")]), partition=1).error == 0
        except (OSError, ConnectionEnded):
            return False

    wait_until(is_acknowledged, "an acknowledgement")
    return time.monotonic() - began


@pytest.mark.parametrize("role", ROLES)
def test_acknowledged_records_survive_kill_of_one_process(broker: Appliance, topic: str, role: str) -> None:
    loads = both(broker, topic)
    go_on(loads, BEFORE_THE_KILL)
    before = generations(broker)
    pace = Pace()
    numbers = [load.sent for load in loads]
    began = time.monotonic()
    os.kill(before[role][0], signal.SIGKILL)
    back_s = seconds_until_served(broker, topic, began)
    wait_until(lambda: have_acked(loads, numbers), "acknowledgements", timeout_s=DELIVERY_TIMEOUT_S)
    clients_back_s = time.monotonic() - began
    print(f"\n{role}: back {back_s * 1000:.0f} ms after the kill, clients {clients_back_s * 1000:.0f} ms")
    wait_until(lambda: generations(broker).get(role, (0, 0))[1] > before[role][1], f"{role} is restarted")
    pace.check(back_s, within_s=BACK_WITHIN_S)
    pace.check(clients_back_s, within_s=CLIENTS_BACK_WITHIN_S)
    go_on(loads, AFTER_THE_KILL)
    check(broker, topic, loads)
    after = generations(broker)
    assert {name for name in before | after if after.get(name) != before.get(name)} == {role}
    assert "Traceback" not in broker.output()


def test_acknowledged_records_survive_kill_of_all_processes_at_once(broker: Appliance, topic: str) -> None:
    loads = both(broker, topic)
    go_on(loads, BEFORE_THE_KILL)
    broker.kill()
    pace = Pace()
    began = time.monotonic()
    broker.start()
    back_s = seconds_until_served(broker, topic, began)
    clients_back_s = back_s + seconds_until_back(loads)
    print(f"\nall: back {back_s * 1000:.0f} ms after the next start, clients {clients_back_s * 1000:.0f} ms")
    pace.check(back_s, within_s=BACK_WITHIN_S)
    pace.check(clients_back_s, within_s=CLIENTS_BACK_WITHIN_S)
    go_on(loads, AFTER_THE_KILL)
    check(broker, topic, loads)


def test_acknowledged_records_survive_kill_of_the_supervisor_alone(broker: Appliance, topic: str) -> None:
    loads = both(broker, topic)
    go_on(loads, BEFORE_THE_KILL)
    family = broker.family()
    pace = Pace()
    began = time.monotonic()
    os.kill(broker.pid, signal.SIGKILL)
    # Its children stop by themselves, in good order.
    wait_until(lambda: all(map(has_ended, family)), "the end of its children")
    ended_s = time.monotonic() - began
    broker.kill()  # for the test's own books; who reaps orphans may take its time
    began = time.monotonic()
    broker.start()
    back_s = ended_s + seconds_until_served(broker, topic, began)
    clients_back_s = back_s + seconds_until_back(loads)
    print(f"\nsupervisor: back {back_s * 1000:.0f} ms after the kill, clients {clients_back_s * 1000:.0f} ms")
    pace.check(back_s, within_s=BACK_WITHIN_S)
    pace.check(clients_back_s, within_s=CLIENTS_BACK_WITHIN_S)
    go_on(loads, AFTER_THE_KILL)
    check(broker, topic, loads)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["netproc 0", "ioproc 0.0"])
def test_acknowledged_records_survive_many_kills(broker: Appliance, topic: str, role: str) -> None:
    loads = both(broker, topic)
    for number in range(20):
        # What was sent before a kill is there before the next: no record waits through two.
        seconds_until_back(loads)
        go_on(loads, 100 + 13 * number)
        kill_and_wait(broker, role)
    go_on(loads, AFTER_THE_KILL)
    check(broker, topic, loads)


def test_clean_stop_and_start_under_load_loses_nothing(broker: Appliance, topic: str) -> None:
    loads = both(broker, topic)
    go_on(loads, BEFORE_THE_KILL)
    broker.stop()
    broker.start()
    go_on(loads, AFTER_THE_KILL)
    check(broker, topic, loads)
