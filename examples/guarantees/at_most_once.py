"""At most once: commit the offsets, then do the work.

A program that is killed after the commit never comes back to these orders. None is shipped twice; some are never
shipped.

    python at_most_once.py 127.0.0.1:9092 orders shipped
"""

from confluent_kafka import Consumer, Producer
from orders import BATCH, CONSUMER, PRODUCER, SOURCE, TARGET, Stop, orders_of, ship

consumer = Consumer(CONSUMER)
consumer.subscribe([SOURCE])
producer = Producer(PRODUCER)
stop = Stop()

while not stop:
    orders = orders_of(consumer.consume(BATCH, timeout=0.2))
    if not orders:
        continue
    consumer.commit(asynchronous=False)  # from here on, these orders are not read again
    for order in orders:
        producer.produce(TARGET, ship(order.value()), key=order.key())
    producer.flush()

consumer.close()
