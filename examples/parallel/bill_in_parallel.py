"""Bill orders with sixteen threads, although the topic has two partitions; the orders of a customer stay in order.

    python examples/parallel/bill_in_parallel.py localhost:9092 orders bills

Each order is a record with the customer as its key. An order that cannot be billed goes to the topic `bills-failed`
after three attempts. Ends when there was no order for two seconds. Start it twice, or kill it and start it again: every
order is billed at least once, and the orders of a customer in their order.
"""

from __future__ import annotations

import sys
import threading
import time

from appliance_client import Consumer, ConsumerRecord, ParallelConsumer, Producer

QUIET_S = 2.0


def main(address: str, orders: str, bills: str) -> None:
    """Bill everything in the topic."""
    last = time.monotonic()
    with (
        Producer(bootstrap_servers=address) as producer,
        Consumer(
            bootstrap_servers=address,
            group_id="billing",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):

        def bill(order: ConsumerRecord) -> None:
            nonlocal last
            last = time.monotonic()
            if order.value is None or order.value == b"broken":
                raise ValueError("this order cannot be read")
            time.sleep(0.02)  # stands for a call to another system
            producer.send(bills, order.value, key=order.key).get(30)

        def put_aside(order: ConsumerRecord, error: Exception) -> None:
            reason = str(error).encode()
            producer.send(f"{bills}-failed", order.value, key=order.key, headers=[("error", reason)]).get(30)

        parallel = ParallelConsumer(
            consumer, [orders], bill, workers=16, retries=2, retry_pause_ms=10, on_failure=put_aside
        )

        def end_when_quiet() -> None:
            while time.monotonic() - last < QUIET_S or parallel.statistics()["running"]:
                time.sleep(0.1)
            parallel.stop()

        threading.Thread(target=end_when_quiet, daemon=True).start()
        parallel.run()


if __name__ == "__main__":
    main(*sys.argv[1:4])
