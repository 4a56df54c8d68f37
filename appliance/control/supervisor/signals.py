"""The signals that mean "stop" to the supervisor, and nothing to its children."""

from __future__ import annotations

import signal

# Ctrl-C and a closed terminal reach the whole process group; only the supervisor acts on them.
SUPERVISOR_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
