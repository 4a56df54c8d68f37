"""What Spark and its Java say of themselves, kept from the terminal of a command.

A JVM writes to the descriptor that it was started with, so there is no moment after which a redirection could be taken
back: a thread passes on what comes through a pipe, but for lines that are known as talk, for as long as we live. The
traceback of PySpark's daemon is talk too: it comes whenever the Java side needs no more rows and hangs up first.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

_STDERR: Final = 2
_PATIENCE_S: Final = 5.0
_TRACEBACK: Final = b"Traceback (most recent call last):"
_DAEMON: Final = b"pyspark/daemon.py"
_HUNG_UP: Final = b"BrokenPipeError:"
_TALK: Final = re.compile(
    rb"WARNING: "  # of the JVM itself, about modules and flags that Spark names
    rb"|(NOTE: )?Picked up (JDK_JAVA|JAVA_TOOL)_OPTIONS"
    rb"|Using Spark's default log4j profile"
    rb"|Setting (default|Spark) log level to|To adjust logging level use"
    rb"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN "
)


@contextmanager
def start_up_talk_hidden() -> Iterator[None]:
    """For a body that starts a session whose log level is ERROR: what it starts says only what matters."""
    sys.stderr.flush()
    terminal = os.dup(_STDERR)
    reading, writing = os.pipe()
    os.dup2(writing, _STDERR)
    os.close(writing)
    thread = threading.Thread(target=_pass_on, args=(reading, terminal), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        os.dup2(terminal, _STDERR)
        thread.join(_PATIENCE_S)  # why it failed may stand in what is not passed on yet
        raise
    sys.stderr.flush()
    os.dup2(terminal, _STDERR)


def _pass_on(reading: int, terminal: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(terminal, "wb", buffering=0) as out:
        for text in _wanted(lines):
            out.write(text)


def _wanted(lines: Iterable[bytes]) -> Iterator[bytes]:
    """All but talk; the lines of a traceback together."""
    traceback: list[bytes] = []
    for line in lines:
        if traceback:
            traceback.append(line)
            if line.startswith(b" "):
                continue
            text = b"".join(traceback)
            traceback = []
            if not (line.startswith(_HUNG_UP) and _DAEMON in text):
                yield text
        elif line.startswith(_TRACEBACK):
            traceback = [line]
        elif _TALK.match(line) is None:
            yield line
    yield b"".join(traceback)
