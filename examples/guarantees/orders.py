"""What the three programs share: their settings, the work on one order, and a clean end."""

import signal
import sys
import time

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
SOURCE = sys.argv[2] if len(sys.argv) > 2 else "orders"
TARGET = sys.argv[3] if len(sys.argv) > 3 else "shipped"
BATCH = 25

CONSUMER = {
    "bootstrap.servers": ADDRESS,
    "group.id": f"{TARGET}-group",
    # A restarted program takes the place of the killed one at once, without waiting for its session to expire.
    "group.instance.id": f"{TARGET}-1",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
PRODUCER = {"bootstrap.servers": ADDRESS, "linger.ms": 0}


def ship(order):
    """The work on one order: two milliseconds."""
    time.sleep(0.002)
    return order + b" shipped"


class Stop:
    """True once the program was asked to end (SIGTERM, Ctrl-C)."""

    def __init__(self):
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, *_):
        self.asked = True

    def __bool__(self):
        return self.asked


def orders_of(messages):
    """The messages without errors. An error ends the program, and whoever started it starts it again."""
    for message in messages:
        if message.error():
            raise SystemExit(f"cannot read {SOURCE}: {message.error()}")
    return messages
