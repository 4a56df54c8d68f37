"""The appliance, started the way its users start it, from a build of this tree's source."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import proc
from benchmarks.brokers import certificate
from benchmarks.brokers.broker import STOP_PATIENCE_SECONDS, SpawnedBroker, free_port
from benchmarks.brokers.builds import Kind, build
from benchmarks.brokers.setting import AS_SHIPPED, AUTHORIZER, SECURITY_PROTOCOLS, Setting
from benchmarks.places import ROOT
from benchmarks.void import Void

LANES_MAX = 16


class Appliance(SpawnedBroker):
    """`appliance serve` with its default settings, by the interpreter that runs the harness."""

    name = "appliance"

    def __init__(self, data_dir: Path, setting: Setting = AS_SHIPPED, *, kind: Kind = Kind.COMPILED) -> None:
        super().__init__(data_dir, setting)
        self.options: dict[str, str] = {
            "group.initial.rebalance.delay.ms": "0"
        }  # as Kafka's own server.properties
        if setting.fsync:
            self.options["durability"] = "fsync"
        """Set beside its defaults, from the next start on."""
        if setting.lanes:
            self.options["listeners.zeromq"] = f"ipc://{data_dir / 'zeromq'}"
            self.options["shared.memory.lanes.max"] = str(LANES_MAX)
        if setting.delayed:
            self.options["services.processes"] = "1"
        if setting.secure:
            users = data_dir / "users.toml"
            data_dir.mkdir(parents=True, exist_ok=True)
            users.touch(mode=0o600)
            users.write_text(f'"{certificate.USER}" = "{certificate.PASSWORD}"\n')
            self._ca, both = certificate.make(data_dir / "tls")
            self.options |= {
                "ssl.keystore.location": str(both),
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.plain.users.file": str(users),
                **AUTHORIZER,
            }
        self._kind = kind
        self._doors: dict[str, str] = {}
        self._ordered: subprocess.Popen[str] | None = None
        if kind is Kind.PURE:
            self.name = "pure"

    def command(self) -> list[str]:
        port = free_port(self.setting.slots)
        self.address = f"127.0.0.1:{port}"
        if self.setting.secure:
            self._doors = {name: f"127.0.0.1:{free_port()}" for name in SECURITY_PROTOCOLS}
            addresses = [f"{SECURITY_PROTOCOLS[name]}://{at}" for name, at in self._doors.items()]
            self.options["listeners"] = ",".join([f"PLAINTEXT://{self.address}", *addresses])
        words = [sys.executable, "-m", "appliance", "serve", "--slots", str(self.setting.slots)]
        words += ["--data-dir", str(self.data_dir / "kept")]
        words += [] if self.setting.secure else ["--port", str(port)]
        for name, value in self.options.items():
            words += ["--set", f"{name}={value}"]
        return words

    def lanes(self) -> dict[str, str]:
        if not self.setting.lanes:
            return {}
        return {"zeromq": self.options["listeners.zeromq"], "lane": str(self.data_dir / "kept")}

    def doors(self) -> dict[str, str]:
        return {**self._doors, "ca": str(self._ca)} if self.setting.secure else {}

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(build(self._kind))}

    def start(self) -> None:
        build(self._kind)  # before the clock starts
        super().start()

    def fixture_seconds(self, count: int) -> list[float]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            [sys.executable, "-P", str(ROOT / "benchmarks" / "load" / "fixtures.py"), str(count)],
            env={**environment, **self.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Void(f"the fixture failed: {done.stderr.strip()[-300:]}")
        seconds: list[float] = json.loads(done.stdout)
        return seconds

    def slot_pids(self, slot: int) -> list[int]:
        titles = re.compile(rf"(ioproc {slot}\.\d+|replica {slot})")
        found = [pid for pid in self.pids() if titles.fullmatch(proc.title_of(pid))]
        if not found:
            raise Void(f"there is no slot {slot}")
        return found

    def stop_slot(self, slot: int) -> None:
        with self._slots("stop", slot) as ordered:
            _, complaint = ordered.communicate(timeout=STOP_PATIENCE_SECONDS)
        if ordered.returncode:
            raise Void(f"slot {slot} is not stopped: {complaint.strip()[-300:]}")

    def start_slot(self, slot: int) -> None:
        self._ordered = self._slots("start", slot)

    def _slots(self, word: str, slot: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "appliance", "slots", word, str(slot), "-b", self.address],
            env={**os.environ, **self.environment()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> None:
        if self._ordered is not None:
            self._ordered.kill()
            self._ordered.communicate()
            self._ordered = None
        super().stop()

    def on_ready(self, line: str) -> None:
        if found := re.search(r"127\.0\.0\.1:\d+", line):
            self.address = found[0]

    def version(self) -> str:
        how = "hot modules compiled by mypyc" if self._kind is Kind.COMPILED else "pure Python"
        return f"{version('log-appliance')}, {how}"
