"""The same broker for other test runners, and for asyncio. Run: python examples/testing/without_pytest.py"""

from __future__ import annotations

import asyncio
import unittest

from aiokafka import AIOKafkaProducer
from orders import orders, place_order

from appliance.testing import Broker


class Orders(unittest.TestCase):
    broker: Broker

    @classmethod
    def setUpClass(cls) -> None:
        cls.broker = cls.enterClassContext(Broker())

    def test_an_order_arrives(self) -> None:
        place_order(self.broker.bootstrap_servers, "ann", 300)
        assert orders(self.broker.bootstrap_servers, 1) == [{"customer": "ann", "cents": 300}]


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_an_order_arrives(self) -> None:
        async with (
            Broker() as broker,
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
        ):
            await producer.send_and_wait("orders", b'{"customer": "bob"}')
            found = await asyncio.to_thread(orders, broker.bootstrap_servers, 1)
            assert found == [{"customer": "bob"}]


if __name__ == "__main__":
    unittest.main()
