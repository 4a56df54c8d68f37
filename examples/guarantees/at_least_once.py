"""At least once: do the work, then commit the offsets.

A program that is killed before the commit does the work again when it comes back. Every order is shipped; some are
shipped twice.

    python at_least_once.py 127.0.0.1:9092 orders shipped
"""

from confluent_kafka import Consumer, Producer
from orders import BATCH, CONSUMER, PRODUCER, SOURCE, TARGET, Stop, orders_of, ship

consumer = Consumer(CONSUMER)
consumer.subscribe([SOURCE])
producer = Producer({**PRODUCER, "enable.idempotence": True})
stop = Stop()

while not stop:
    orders = orders_of(consumer.consume(BATCH, timeout=0.2))
    if not orders:
        continue
    for order in orders:
        producer.produce(TARGET, ship(order.value()), key=order.key())
    if producer.flush(30):  # from here on, every order of this batch is shipped
        raise SystemExit("the broker did not acknowledge the records")
    consumer.commit(asynchronous=False)

consumer.close()
