"""Measure how long a start takes: of the command, and up to the first record that a broker has acknowledged.

usage: start_times.py [--rounds N] COMMAND...

    start_times.py /opt/appliance/bin/appliance 'chroot /srv/debian appliance'

Each COMMAND is a way to run `appliance`, and gets the SIGTERM that stops the broker. The rounds of all commands are
done in turns, so that a load of the machine meets all of them. Printed is the median of each figure, and the least in
brackets, because a load disturbs that less:

    version   `COMMAND --version`, from the call to its end
    ready     `COMMAND serve --ephemeral`, from the call to the line with the address
    record    the same, to the first record that librdkafka has an acknowledgement for
    cpu       processor time of all processes of that broker, from the call to the end of the stop
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping

from confluent_kafka import KafkaError, Message, Producer

FIGURES = ("version", "ready", "record", "cpu")
ACKNOWLEDGED_S = 30


def version_s(command: list[str]) -> float:
    """Return how long `--version` takes, in seconds."""
    began = time.perf_counter()
    subprocess.run([*command, "--version"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def serve(command: list[str]) -> Mapping[str, float]:
    """Start a broker, produce one record, and stop it. Return the figures in seconds.

    Raises:
        RuntimeError: the broker did not acknowledge the record.
    """
    before = _children_s()
    began = time.perf_counter()
    words = [*command, "serve", "--ephemeral"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as broker:
        assert broker.stdout is not None
        address = broker.stdout.readline().strip()
        ready = time.perf_counter() - began
        errors: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            errors.append(error)

        producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0})
        producer.produce("starts", b"one", on_delivery=delivered)
        producer.flush(ACKNOWLEDGED_S)
        record = time.perf_counter() - began
        broker.send_signal(signal.SIGTERM)
    if errors != [None]:
        raise RuntimeError(f"{shlex.join(command)}: {errors or 'no acknowledgement'}")
    return {"ready": ready, "record": record, "cpu": _children_s() - before}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("commands", nargs="+", metavar="COMMAND")
    asked = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # it would put this tree before what is measured
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(asked.rounds + 1):
        for text in asked.commands:
            command = shlex.split(text)
            figures = {"version": version_s(command), **serve(command)}
            if number:  # the first round reads files from the disk, and may write byte code
                for name, seconds in figures.items():
                    found[text, name].append(seconds)
    for text in asked.commands:
        told = []
        for name in FIGURES:
            each = [seconds * 1000 for seconds in found[text, name]]
            told.append(f"{name} {statistics.median(each):.0f} ms ({min(each):.0f})")
        print(f"{', '.join(told)}: {text}")


if __name__ == "__main__":
    main()
