"""A command's terminal shows what matters of what a JVM says, and not that it starts."""

from __future__ import annotations

import subprocess
import sys

TALK = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/22 00:19:28 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Setting default log level to "WARN".
Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
BrokenPipeError: [Errno 32] Broken pipe
"""
WORDS = """26/11/22 00:19:28 ERROR SparkContext: no space left on device
java.lang.IllegalStateException: of no use
Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
MemoryError
Traceback (most recent call last):
  File "/home/me/job.py", line 3, in send
BrokenPipeError: [Errno 32] Broken pipe
Traceback (most recent call last):
  that is cut
"""
PROGRAM = """
import subprocess, sys
from spark_connector.start_up_talk import start_up_talk_hidden

def say(text):
    return subprocess.Popen(["sh", "-c", 'read go; printf "%s" "$1" >&2', "sh", text], stdin=subprocess.PIPE)

try:
    with start_up_talk_hidden():
        jvm = say(sys.argv[1])
        if sys.argv[2] == "fails":
            jvm.communicate(b"go\\n")
            raise ValueError("the start failed")
finally:
    print("ours", file=sys.stderr, flush=True)
jvm.communicate(b"go\\n")  # says it all after the start
from threading import enumerate
while any("_pass_on" in each.name for each in enumerate()):
    pass
"""


def told(text: str, how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, text, how], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stderr


def test_talk_is_hidden_and_all_else_is_passed_on_for_as_long_as_we_live() -> None:
    assert told(TALK, "works") == "ours\n"
    assert sorted(told(TALK + WORDS, "works").splitlines()) == sorted(["ours", *WORDS.splitlines()])


def test_what_was_said_before_a_start_failed_is_passed_on() -> None:
    found = told(TALK + WORDS, "fails")
    assert found.startswith(WORDS + "ours\nTraceback")
    assert "the start failed" in found
