"""Answers that wait for a follower: the purgatory expires them by its timing wheel, and nothing hangs without it."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.delayed.held_answers import GRACE_MS
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import create, in_sync, leaders
from tests.system.raw import (
    PRODUCE,
    PRODUCE_VERSION,
    Produced,
    produce_body,
    read_produced,
    suspend,
    wait_until,
)

TOPIC = "held"
SLOTS = 3
BATCH = encode_batch([Record(b"one")])
PATIENCE_S = 60.0
TIMEOUT_MS = 1_500
LONG_MS = 4_000
LATE_MS = 5_000  # a busy machine's


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data", slots=SLOTS)
    appliance.start()
    create(appliance, TOPIC, 1, replicas=SLOTS)
    wait_until(lambda: len(in_sync(appliance, TOPIC)[0]) == SLOTS, "all are in sync", timeout_s=30)
    yield appliance
    appliance.stop()


def purgatory(broker: Appliance) -> dict[str, int]:
    """The counters of the purgatory's present life; none while it is between two."""
    command = [sys.executable, "-m", "appliance", "status", "--data-dir", str(broker.data_dir), "--json"]
    status = json.loads(subprocess.check_output(command))
    for row in status["processes"]:
        if row["role"] == "purgatory" and row["pid"] is not None:
            counters: dict[str, int] = row["counters"]
            return counters
    return {}


@contextmanager
def a_follower_stands_still(broker: Appliance) -> Iterator[int]:
    """Yields the leader's slot."""
    leader = leaders(broker, TOPIC)[0]
    (stopped,) = broker.pids(f"replica {(leader + 1) % SLOTS}")
    suspend(stopped)
    try:
        yield leader
    finally:
        os.kill(stopped, signal.SIGCONT)


def send(connection: WireSocket, timeout_ms: int) -> int:
    """Sends one record with acks=all; the request's correlation id."""
    body = produce_body(TOPIC, BATCH, timeout_ms=timeout_ms)
    return connection.send_request(PRODUCE, PRODUCE_VERSION, body, flexible=False)


def answer(connection: WireSocket, correlation_id: int) -> Produced:
    frame = connection.read_frame()
    assert struct.unpack_from(">i", frame)[0] == correlation_id
    return read_produced(frame)


def test_an_answer_that_waits_for_a_follower_is_expired_by_the_purgatory(broker: Appliance) -> None:
    with (
        a_follower_stands_still(broker) as leader,
        WireSocket(broker.port + leader, timeout_s=PATIENCE_S) as connection,
    ):
        began = time.monotonic()
        assert answer(connection, send(connection, TIMEOUT_MS)).error == ErrorCode.REQUEST_TIMED_OUT
        waited_ms = (time.monotonic() - began) * 1000
    assert TIMEOUT_MS <= waited_ms < TIMEOUT_MS + LATE_MS
    wait_until(lambda: purgatory(broker)["expired_answers"] == 1, "the purgatory counts it")
    assert purgatory(broker)["held_answers"] >= 1


def test_the_next_life_of_a_killed_purgatory_expires_what_waited_before(broker: Appliance) -> None:
    with (
        a_follower_stands_still(broker) as leader,
        WireSocket(broker.port + leader, timeout_s=PATIENCE_S) as connection,
    ):
        began = time.monotonic()
        sent = [send(connection, LONG_MS) for _ in range(20)]
        wait_until(lambda: purgatory(broker).get("waiting", 0) >= len(sent), "all are registered")
        broker.kill_role("purgatory")
        for correlation_id in sent:
            assert answer(connection, correlation_id).error == ErrorCode.REQUEST_TIMED_OUT
        waited_ms = (time.monotonic() - began) * 1000
    assert LONG_MS <= waited_ms < LONG_MS + LATE_MS
    wait_until(lambda: purgatory(broker).get("expired_answers") == len(sent), "its next life counts them")
    assert purgatory(broker)["held_answers"] == len(sent)


def test_nothing_hangs_where_the_purgatory_dies_again_and_again(broker: Appliance) -> None:
    with (
        a_follower_stands_still(broker) as leader,
        WireSocket(broker.port + leader, timeout_s=PATIENCE_S) as connection,
    ):
        for timeout_ms in (20, 200, 700):
            began = time.monotonic()
            sent = [send(connection, timeout_ms) for _ in range(20)]
            broker.kill_role("purgatory")
            for correlation_id in sent:
                assert answer(connection, correlation_id).error == ErrorCode.REQUEST_TIMED_OUT
            assert timeout_ms <= (time.monotonic() - began) * 1000 < timeout_ms + LATE_MS


def test_what_followers_have_within_milliseconds_is_never_registered(broker: Appliance) -> None:
    leader = leaders(broker, TOPIC)[0]
    before = purgatory(broker)["held_answers"]
    slow = 0
    with WireSocket(broker.port + leader, timeout_s=PATIENCE_S) as connection:
        for _ in range(3_000):
            began = time.monotonic()
            assert answer(connection, send(connection, 30_000)).error == 0
            slow += (time.monotonic() - began) * 1000 >= GRACE_MS
    assert purgatory(broker)["held_answers"] - before <= slow < 1_000
