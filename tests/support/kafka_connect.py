"""A worker of Kafka Connect in distributed mode, with exactly-once support for sources, asked by its REST interface."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support import kafka_streams
from tests.support.java_program import JavaProgram
from tests.support.wire import free_ports

PATIENCE_S: Final = 120.0
NOT_NOW: Final = (404, 409, 500, 503)
"""Its state is not read yet, the workers rebalance, or the broker did not answer in time."""
SETTINGS: Final[Mapping[str, object]] = {
    "exactly.once.source.support": "enabled",
    "group.id": "connect",
    "config.storage.topic": "connect-configs",
    "config.storage.replication.factor": 1,
    "offset.storage.topic": "connect-offsets",
    "offset.storage.replication.factor": 1,
    "offset.storage.partitions": 2,
    "status.storage.topic": "connect-status",
    "status.storage.replication.factor": 1,
    "status.storage.partitions": 1,
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "plugin.discovery": "service_load",  # looks into no class file: seconds of each start
    "connector.client.config.override.policy": "All",
    # A worker that was killed is missed after six seconds, and its task is given to another one at once.
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 1_500,
    "scheduled.rebalance.max.delay.ms": 0,
}


class ConnectWorker(JavaProgram):
    """One worker of the cluster `connect`; all of them keep their state in the broker."""

    def __init__(self, address: str, directory: Path, name: str) -> None:
        self._rest = f"127.0.0.1:{free_ports()}"
        settings = {**SETTINGS, "bootstrap.servers": address, "listeners": f"http://{self._rest}"}
        properties = directory / f"{name}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        super().__init__(
            ["org.apache.kafka.connect.cli.ConnectDistributed", str(properties)],
            directory / f"{name}.log",
            more=kafka_streams.install(),
        )
        self.restarts = 0

    def configure(self, connector: str, settings: Mapping[str, object]) -> None:
        """Creates a connector as soon as the worker takes it."""
        body = {key: str(value) for key, value in settings.items()}
        deadline = time.monotonic() + PATIENCE_S
        while self.ask("PUT", f"/connectors/{connector}/config", body) is None:
            assert self.lives(), self.told()
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.2)

    def states(self, connector: str) -> list[str]:
        """Of its tasks; empty where nobody can say."""
        status = self.ask("GET", f"/connectors/{connector}/status")
        return [] if status is None else [task["state"] for task in status["tasks"]]

    def restart_what_failed(self, connector: str) -> None:
        """What an operator does: a task that met an error it may not go on from waits for it."""
        if "FAILED" in self.states(connector):
            self.ask("POST", f"/connectors/{connector}/restart?includeTasks=true&onlyFailed=true")
            self.restarts += 1

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer as JSON; None where the worker cannot answer yet, or not now."""
        request = urllib.request.Request(
            f"http://{self._rest}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code not in NOT_NOW:
                told = error.read().decode(errors="replace")
                raise AssertionError(f"{method} {path}: {error.code} {told}") from None
            return None
        except OSError:
            return None
