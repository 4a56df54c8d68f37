"""Kill each of the three programs while it works, and count losses and duplicates.

    python examples/guarantees/demo.py [--kills 10] [--orders 3000] [--at HOST:PORT]

Without --at it starts a broker of its own in a directory that it removes. With --json it prints the counts as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import create_server
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

PROGRAMS: Final = ("at_most_once", "at_least_once", "exactly_once")
HERE: Final = Path(__file__).parent
PATIENCE_S: Final = 120.0
SOURCE: Final = "orders"


@dataclass(frozen=True, slots=True)
class Counted:
    """What became of the orders of one program."""

    program: str
    kills: int
    orders: int
    lost: int
    duplicates: int


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Kill three programs, and count losses and duplicates.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--orders", type=int, default=3000)
    parser.add_argument("--at", metavar="HOST:PORT", help="a running broker")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    chance = random.Random(asked.seed)
    with _broker(asked.at) as address:
        # Topics of this run alone, because a broker given by --at may hold those of an earlier one.
        run = f"{int(time.time())}-{os.getpid()}"
        source = f"{SOURCE}-{run}"
        _create(address, source, *(f"{program}-{run}" for program in PROGRAMS))
        _fill(address, source, asked.orders)
        found = []
        for program in PROGRAMS:
            _say(f"{program}: {asked.orders} orders, killed {asked.kills} times …", quiet=asked.json)
            target = f"{program}-{run}"
            _run_and_kill(
                address, program, source, target, kills=asked.kills, orders=asked.orders, chance=chance
            )
            found.append(_counted(address, program, target, kills=asked.kills, orders=asked.orders))
    if asked.json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        print(f"\n{'program':<16}{'kills':>6}{'orders':>8}{'lost':>8}{'duplicates':>12}")
        for each in found:
            print(f"{each.program:<16}{each.kills:>6}{each.orders:>8}{each.lost:>8}{each.duplicates:>12}")
    return 0 if (found[-1].lost, found[-1].duplicates) == (0, 0) else 1


def _run_and_kill(
    address: str, program: str, source: str, target: str, *, kills: int, orders: int, chance: random.Random
) -> None:
    """Run the program to the end of its input, and kill it `kills` times on the way, spread over the input."""
    with Consumer({"bootstrap.servers": address, "group.id": f"{target}-group"}) as look:
        place = TopicPartition(source, 0)

        def done() -> int:
            return max(0, look.committed([place], timeout=30)[0].offset)

        for number in range(kills):
            running = _start(program, address, source, target)
            # Each life does its part of the orders, so that it is killed while it works and not while it starts.
            part = orders * (number + 1) // (kills + 2)
            _wait(running, done, part)
            time.sleep(chance.uniform(0.0, 0.1))
            running.kill()
            running.wait()
        running = _start(program, address, source, target)
        _wait(running, done, orders)
        running.send_signal(signal.SIGTERM)  # ends after the batch
        running.wait(30)


def _start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    # The programs import their neighbour, also where PYTHONSAFEPATH leaves out a program's own directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))}
    return subprocess.Popen([sys.executable, str(HERE / f"{program}.py"), *arguments], env=environment)


def _wait(running: subprocess.Popen[bytes], done: Callable[[], int], wanted: int) -> None:
    give_up_at_s = time.monotonic() + PATIENCE_S
    while done() < wanted:
        if running.poll() is not None:
            raise SystemExit(f"a program ended with {running.returncode}")
        if time.monotonic() > give_up_at_s:
            running.kill()
            raise SystemExit(f"a program did nothing for {PATIENCE_S:.0f} s")
        time.sleep(0.01)


def _counted(address: str, program: str, target: str, *, kills: int, orders: int) -> Counted:
    """Read what the program has written, as a read_committed consumer sees it."""
    seen: dict[bytes, int] = {}
    with Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"{target}-count",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    ) as reader:
        reader.assign([TopicPartition(target, 0, 0)])
        while (message := reader.poll(30)) is not None:
            if message.error():
                break  # the end of the partition
            key = message.key()
            assert isinstance(key, bytes)
            seen[key] = seen.get(key, 0) + 1
        else:
            raise SystemExit(f"{target} cannot be read to its end")
    return Counted(program, kills, orders, orders - len(seen), sum(seen.values()) - len(seen))


def _create(address: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(60)


def _fill(address: str, source: str, orders: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(orders):
        producer.produce(source, b"order %06d" % number, key=b"%06d" % number)
        producer.poll(0)
    if producer.flush(60):
        raise KafkaException("the broker did not take the orders")


@contextmanager
def _broker(address: str | None) -> Iterator[str]:
    """Yield `address`, or that of a broker that is started and stopped here."""
    if address is not None:
        yield address
        return
    with tempfile.TemporaryDirectory(prefix="demo-exactly-once-") as directory:
        with create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "appliance", "serve", "--slots", "1", "--port", str(port)]
        log = Path(directory, "broker.log")
        with log.open("wb") as output:
            started = subprocess.Popen(
                [*command, "--data-dir", str(Path(directory, "data"))],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            give_up_at_s = time.monotonic() + PATIENCE_S
            while "ready" not in log.read_text():
                if started.poll() is not None or time.monotonic() > give_up_at_s:
                    raise SystemExit(f"the broker did not start:\n{log.read_text()}")
                time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            started.terminate()
            started.wait(30)


def _say(line: str, *, quiet: bool) -> None:
    if not quiet:
        print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
