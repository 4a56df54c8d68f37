"""What a consumer is asked for and cannot give is one of the client's own errors, and changes nothing."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from appliance_client import Consumer, aio
from appliance_client.errors import OptionError

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "5"])
def test_a_poll_of_no_records_is_refused(most: Any) -> None:
    with Consumer(bootstrap_servers=NOWHERE) as consumer:
        for poll in (consumer.poll, consumer.poll_arrow):
            with pytest.raises(OptionError, match=r"max_records is .*: a whole number from 1 on, or None"):
                poll(0, max_records=most)

    async def play() -> None:
        async with aio.Consumer(bootstrap_servers=NOWHERE) as consumer:
            for poll in (consumer.poll, consumer.poll_arrow):
                with pytest.raises(
                    OptionError, match=r"max_records is .*: a whole number from 1 on, or None"
                ):
                    await poll(0, max_records=most)

    asyncio.run(play())


@pytest.mark.parametrize("pattern", ["(", "*", "a{2,1}", b"orders-.*", re.compile(b"orders-.*"), 5])
def test_a_pattern_that_is_no_regular_expression_is_refused_and_changes_no_subscription(pattern: Any) -> None:
    with Consumer("orders", bootstrap_servers=NOWHERE, group_id="g") as consumer:
        with pytest.raises(OptionError, match=r"pattern is .*regular expression"):
            consumer.subscribe(pattern=pattern)
        assert consumer.subscription() == {"orders"}

    async def play() -> None:
        async with aio.Consumer("orders", bootstrap_servers=NOWHERE, group_id="g") as consumer:
            with pytest.raises(OptionError, match=r"pattern is .*regular expression"):
                consumer.subscribe(pattern=pattern)
            assert consumer.subscription() == {"orders"}

    asyncio.run(play())


def test_a_pattern_may_be_compiled_already() -> None:
    with Consumer(bootstrap_servers=NOWHERE, group_id="g") as consumer:
        consumer.subscribe(pattern=re.compile("ORDERS-.*", re.I))
        assert consumer._consumer._pattern is not None
        assert consumer._consumer._pattern.match("orders-1")
