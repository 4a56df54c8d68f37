"""A class-data archive of Kafka's jars: a JVM that maps it needs a third of the processor time until it works.

The tests start some two hundred JVMs, and most of what such a JVM does is to read and verify classes. The archive (JEP
310) has them read and verified. It is made once for each JDK and each set of jars, from the classes that a broker and a
few tools load, under `.cache/java-archive`. A JVM that cannot use it, since its class path begins otherwise or its
version is another one, loads the classes from the jars and says nothing.

usage: python -m tests.support.java_archive
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.apache_kafka import ARCHIVE, LIBS, TOOL_JVM, ApacheKafka, command, install
from tests.support.broker import BrokerFailed

KEY: Final = ARCHIVE.with_suffix(".key")
"""Has what the archive was made for, also where none could be made."""

TIMEOUT_S: Final = 300.0
TOPIC: Final = "archive"


class _Listed(ApacheKafka):
    """A broker that leaves a list of the classes that it and its tools load."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "data")
        self._lists = directory / "lists"
        self._lists.mkdir()

    def _java(self, *options: str) -> list[str]:
        number = len(list(self._lists.iterdir()))
        place = self._lists / f"{number}.list"
        place.touch()
        return command(f"-XX:DumpLoadedClassList={place}", *options)

    def _run_tool(self, name: str, *arguments: str, given: str = "") -> None:
        _done([*self._java(*TOOL_JVM), name, *arguments], given=given)

    def use(self) -> None:
        """Run a few tools that load what most programs with Kafka's clients load."""
        server = ("--bootstrap-server", self.address)
        tools = "org.apache.kafka.tools"
        self._run_tool(f"{tools}.TopicCommand", *server, "--create", "--topic", TOPIC)
        self._run_tool(f"{tools}.ConsoleProducer", *server, "--topic", TOPIC, given="value\n")
        what = ("--topic", TOPIC, "--from-beginning", "--max-messages", "1")
        self._run_tool(f"{tools}.consumer.ConsoleConsumer", *server, *what)
        self._run_tool(f"{tools}.consumer.group.ConsumerGroupCommand", *server, "--list")

    def classes(self) -> list[str]:
        """What was loaded, each class and each lambda once."""
        lines = [line for path in self._lists.iterdir() for line in path.read_text().splitlines()]
        return sorted({line for line in lines if not line.startswith("#")})


def make() -> None:
    """Make the archive if there is none for this JDK and these jars.

    No failure is an error, because the archive only saves time: the next one who asks tries again, except where this
    JDK makes no archives.
    """
    install()
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with (ARCHIVE.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # runs side by side want the same archive
        key = _key()
        if KEY.exists() and KEY.read_text() == key:
            return
        ARCHIVE.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as directory:
            try:
                classes = _loaded(Path(directory))
            except (subprocess.SubprocessError, BrokerFailed) as fault:
                say(f"Kafka did not run: {fault}")
                return
            try:
                _dump(classes, Path(directory))
            except subprocess.SubprocessError as fault:
                say(f"this JDK makes none: {fault}")
        KEY.write_text(key)


def say(why: str) -> None:
    print(f"no class-data archive, so JVMs start slower: {why}", file=sys.stderr)


def _loaded(directory: Path) -> list[str]:
    """The classes that a broker and its tools load."""
    broker = _Listed(directory)
    broker.start()
    try:
        broker.use()
    finally:
        broker.stop()
    return broker.classes()


def _dump(names: list[str], directory: Path) -> None:
    """Make the archive of these classes."""
    classes = directory / "classes"
    classes.write_text("\n".join(names) + "\n")
    made = directory / "archive"
    _done(command("-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}"))
    os.rename(made, ARCHIVE)


def _done(words: list[str], *, given: str = "") -> None:
    subprocess.run(words, input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)


def _key() -> str:
    """The JDK, this program, and the jars as the JVM compares them with the archive."""
    version = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    jars = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in sorted(LIBS.iterdir())]
    made_from = "\n".join([version, str(LIBS), Path(__file__).read_text(), *jars])
    return hashlib.sha256(made_from.encode()).hexdigest()


if __name__ == "__main__":
    make()
