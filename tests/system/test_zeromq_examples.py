"""The programs in examples/zeromq do what their heads say, against an appliance that is started for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from tests.support.broker import Appliance

EXAMPLES = Path(__file__).parents[2] / "examples" / "zeromq"
HEADER_ONLY = Path(__file__).parents[1] / "support" / "zeromq_header"
PATIENCE_S = 120
SETTINGS: dict[str, object] = {"zeromq.session.timeout.ms": 6_000}
SILENCE_S = 8.5
"""Longer than that, so a subscriber lives through it by its heartbeats only."""


AS_A_USER = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
"""The run on the compiled build sets it, and it hides the file beside a program. No user has it set."""


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("ze")
    endpoint = f"ipc://{home}/s"
    appliance = Appliance(home / "data", settings={"listeners.zeromq": [endpoint], **SETTINGS})
    appliance.start(180)
    try:
        yield endpoint
    finally:
        appliance.stop()


def printed(command: Sequence[str | Path], *arguments: str, folder: Path | None = None) -> list[str]:
    done = subprocess.run(
        [*map(str, command), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=folder,
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def library() -> Path:
    """Return libzmq as pyzmq brings it along, so that a test needs no package of the system."""
    package = Path(zmq.__file__).parent
    (found,) = [*package.parent.glob("pyzmq.libs/libzmq-*.so*")]
    return found


@dataclass(frozen=True, slots=True)
class Example:
    """The commands of one language, without their arguments."""

    produce_and_fetch: list[str | Path]
    subscribe: list[str | Path]

    def prints(self, *arguments: str) -> list[str]:
        """What `produce_and_fetch` prints."""
        return printed(self.produce_and_fetch, *arguments)


def in_python(_: Path) -> Example:
    return Example(
        [sys.executable, EXAMPLES / "produce_and_fetch.py"], [sys.executable, EXAMPLES / "subscribe.py"]
    )


def in_c(home: Path) -> Example:
    compiler = shutil.which("cc")
    assert compiler is not None, "a C compiler builds the hot modules, too"
    lib = library()
    for name in ("produce_and_fetch", "subscribe"):
        printed(
            [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-idirafter", HEADER_ONLY, "-o", home / name],
            str(EXAMPLES / f"{name}.c"),
            str(lib),
            f"-Wl,-rpath,{lib.parent}",
            "-Wl,--allow-shlib-undefined",
        )
    return Example([home / "produce_and_fetch"], [home / "subscribe"])


def in_node(_: Path) -> Example:
    node = shutil.which("node")
    assert node is not None, "scripts/install-judges.sh installs it"
    assert (EXAMPLES / "node" / "node_modules").is_dir(), "scripts/install-judges.sh fetches the package"
    folder = EXAMPLES / "node"
    return Example([node, folder / "produce_and_fetch.js"], [node, folder / "subscribe.js"])


def in_go(home: Path) -> Example:
    go = shutil.which("go")
    assert go is not None, "scripts/install-judges.sh installs it"
    program = home / "example"
    printed([go, "build", "-o", program], folder=EXAMPLES / "go")
    return Example([program], [program, "--subscribe"])


LANGUAGES: dict[str, Callable[[Path], Example]] = {
    "python": in_python,
    "c": in_c,
    "node": in_node,
    "go": in_go,
}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Example]:
    return {name: build(tmp_path_factory.mktemp(name)) for name, build in LANGUAGES.items()}


@pytest.fixture
def c_program(examples: dict[str, Example]) -> Path:
    return Path(examples["c"].produce_and_fetch[0])


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_produces_and_prints(language: str, listener: str, examples: dict[str, Example]) -> None:
    topic = f"from-{language}"
    assert examples[language].prints(listener, topic, "one", "two") == ["0 one", "1 two"]
    assert examples[language].prints(listener, topic, "three") == ["0 one", "1 two", "2 three"]


def test_every_subscriber_prints_what_comes(
    listener: str, examples: dict[str, Example], c_program: Path
) -> None:
    """All languages at once, because each of them has to outlast the same silence."""
    subscribers: dict[str, subprocess.Popen[str]] = {}
    long = "x" * 100_000

    def print_to_all(*values: str) -> None:
        def to(language: str) -> None:
            printed([c_program, listener, f"pushed-to-{language}"], *values)

        with ThreadPoolExecutor(len(LANGUAGES)) as pool:
            list(pool.map(to, LANGUAGES))

    try:
        for language in LANGUAGES:
            where = [listener, f"pushed-to-{language}"]
            arguments = ["5", *where] if language == "go" else [*where, "5"]
            subscribers[language] = subprocess.Popen(
                [*map(str, examples[language].subscribe), *arguments],
                stdout=subprocess.PIPE,
                text=True,
                env=AS_A_USER,
            )
        print_to_all("one", "two")
        time.sleep(SILENCE_S)
        for value in (long, "four", "five"):
            print_to_all(value)
        for language, subscriber in subscribers.items():
            out, _ = subscriber.communicate(timeout=PATIENCE_S)
            assert out.splitlines() == ["0 one", "1 two", f"2 {long}", "3 four", "4 five"], language
            assert not subscriber.returncode, language
    finally:
        for subscriber in subscribers.values():
            subscriber.kill()


def test_every_program_reads_what_the_others_wrote(listener: str, examples: dict[str, Example]) -> None:
    long = "x" * 100_000
    expected = []
    for number, language in enumerate(LANGUAGES):
        value = f"{language} {long}"
        expected.append(f"{number} {value}")
        assert examples[language].prints(listener, "shared", value) == expected
    for example in examples.values():
        assert example.prints(listener, "shared") == expected


def test_a_program_ends_with_the_brokers_reason(listener: str, c_program: Path) -> None:
    done = subprocess.run(
        [c_program, f"{listener}.0", "t"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error 2: this connection has no session with this token\n"
