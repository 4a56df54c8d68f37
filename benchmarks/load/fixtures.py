"""Starts brokers one after another, as the pytest fixture does, and prints the seconds of each as a JSON list.

usage: fixtures.py COUNT

The seconds of a broker begin before the call of `start` and end when librdkafka has the acknowledgement of the first
record. A process of its own, because the appliance that it imports must be the measured build. The import of
`appliance.testing` is not counted: pytest does it while it collects the tests.
"""

import json
import sys
import time

from confluent_kafka import Producer

from appliance.testing import Broker

ACKNOWLEDGED_S = 30


def start_s() -> float:
    """Return the seconds of one broker, which has ended by then.

    Raises:
        RuntimeError: the record was not acknowledged.
    """
    began = time.monotonic()
    with Broker() as broker:
        errors: list[object] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "log_level": 0})
        producer.produce("first", b"one", on_delivery=lambda error, _: errors.append(error))
        producer.flush(ACKNOWLEDGED_S)
        seconds = time.monotonic() - began
    if errors != [None]:
        raise RuntimeError(f"{errors or 'no acknowledgement'}")
    return seconds


if __name__ == "__main__":
    print(json.dumps([start_s() for _ in range(int(sys.argv[1]))]))
