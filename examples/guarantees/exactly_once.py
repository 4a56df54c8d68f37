"""Exactly once: the work and the offsets in one transaction.

A program that is killed leaves an open transaction. When it comes back, `init_transactions` aborts it: consumers that
read only committed records never see its orders, and its offsets do not count. The program then reads them again.

    python exactly_once.py 127.0.0.1:9092 orders shipped
"""

from confluent_kafka import Consumer, Producer
from orders import BATCH, CONSUMER, PRODUCER, SOURCE, TARGET, Stop, orders_of, ship

# The same id after every start: that is how the broker knows whose open transaction it aborts.
producer = Producer({**PRODUCER, "transactional.id": f"{TARGET}-1"})
producer.init_transactions(60)
consumer = Consumer(CONSUMER)
consumer.subscribe([SOURCE])
stop = Stop()

while not stop:
    orders = orders_of(consumer.consume(BATCH, timeout=0.2))
    if not orders:
        continue
    producer.begin_transaction()
    for order in orders:
        producer.produce(TARGET, ship(order.value()), key=order.key())
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
    )
    producer.commit_transaction(30)  # the orders and the offsets, or neither

consumer.close()
