"""Kafka Streams, MirrorMaker 2 and Connect's connectors of files, beside Apache Kafka's own jars."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
LIBS: Final = REPOSITORY / ".cache" / "kafka-streams" / "libs"
INSTALL: Final = REPOSITORY / "scripts" / "install-kafka-streams.sh"


@cache
def install() -> Path:
    """Fetches them where they are missing; the directory of the jars."""
    subprocess.run([str(INSTALL)], check=True, capture_output=True, text=True, timeout=600)
    return LIBS
