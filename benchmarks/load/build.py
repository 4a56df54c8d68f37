"""Compiles the C programs beside this file into the cache, once per state of their sources."""

import hashlib
import subprocess
from pathlib import Path

from benchmarks.places import CACHE, LIBRDKAFKA, ROOT

HERE = Path(__file__).resolve().parent
FLAGS = ("-O2", "-g", "-std=gnu11", "-Wall")
MOCK_LIBRARIES = ("-lm", "-lzstd", "-lssl", "-lcrypto", "-lz", "-ldl", "-lpthread")


def one_record() -> Path:
    """Our generator of many connections. Needs nothing but a compiler."""
    return _compiled("one_record", before=(), after=())


def spinner() -> Path:
    """Keeps a core awake."""
    return _compiled("spinner", before=(), after=())


def wake() -> Path:
    """Wakes another core and is woken by it."""
    return _compiled("wake", before=(), after=())


def client_latency() -> Path:
    """One record at a time through librdkafka."""
    return _with_client("client_latency")


def fixed_rate() -> Path:
    """Records at a fixed rate through librdkafka, written and read back."""
    return _with_client("fixed_rate")


def count_sent() -> Path:
    """A plugin for `rdkafka_performance` that counts what it sends."""
    return _with_client("count_sent", "-shared", "-fPIC")


def mock_broker() -> Path:
    """librdkafka's mock cluster, linked with its archive because it uses an inner header."""
    source = librdkafka()
    return _compiled(
        "mock_broker",
        before=(f"-I{source}", f"-I{source / 'src'}"),
        after=(str(source / "src" / "librdkafka.a"), *MOCK_LIBRARIES),
    )


def rdkafka_performance() -> Path:
    """librdkafka's own load generator."""
    return librdkafka() / "examples" / "rdkafka_performance"


def librdkafka() -> Path:
    """Its built source tree; built now when it is not there."""
    if not (LIBRDKAFKA.parent / "READY").exists():
        subprocess.run([ROOT / "scripts" / "install-librdkafka.sh"], check=True)
    return LIBRDKAFKA


def librdkafka_version() -> str:
    """As its change log names it, from the line that the build left."""
    for line in (LIBRDKAFKA.parent / "READY").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "librdkafka":
            return value
    return "unknown"


def _with_client(name: str, *flags: str) -> Path:
    source = librdkafka() / "src"
    return _compiled(
        name,
        before=(f"-I{source}", *flags),
        after=(f"-L{source}", "-l:librdkafka.so.1", "-lpthread", f"-Wl,-rpath,{source}"),
    )


def _compiled(name: str, *, before: tuple[str, ...], after: tuple[str, ...]) -> Path:
    digest = hashlib.sha256(repr((FLAGS, before, after)).encode())
    for source in (HERE / f"{name}.c", *sorted(HERE.glob("*.h"))):
        digest.update(source.read_bytes())
    program = CACHE / "programs" / digest.hexdigest()[:12] / name
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        fresh = program.with_suffix(".new")
        subprocess.run(["gcc", *FLAGS, *before, "-o", fresh, HERE / f"{name}.c", *after], check=True)
        fresh.rename(program)
    return program
