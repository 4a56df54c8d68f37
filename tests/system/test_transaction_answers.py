"""Each request that no library would send gets Apache Kafka's answer (transaction_answers.py).

DIFFERENT names what the appliance answers otherwise, with the reason. Kafka's own answer is always right.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Final

import pytest

from tests.support.judge import JUDGE, running_broker
from tests.system.transaction_answers import PARTS, answers, recorded

DIFFERENT: Final = {
    # Kafka judges the request's name; here the permit is the producer id's.
    "in another's name | PRODUCE v8": "49 -> 0: the batch belongs to the open transaction of its producer id",
    "to the transaction log | PRODUCE v8": "48 -> 17: the topic is looked at first",
    # A batch that is in the log already is a duplicate, with or without an open transaction.
    "the first again, after the end | PRODUCE v8": "48 -> 0 with its old offset",
    # The coordinator is asked each time; Kafka asks it once for a transaction.
    "in nobody's name | TXN_OFFSET_COMMIT": "0 -> 49",
    "longer than the broker lives | LIST": "Kafka lists ids with no transaction open, too",
    "of an unknown topic | ADD_PARTITIONS_TO_TXN v5": "3 -> 120: it is not in the transaction",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    with running_broker(tmp_path_factory.mktemp("answers") / "data") as broker:
        yield answers(broker.address)


@pytest.mark.parametrize("part", [part.__name__ for part in PARTS])
def test_a_request_that_no_library_sends_gets_kafkas_answer(part: str, told: dict[str, list[str]]) -> None:
    different = [
        (ours, kafkas)
        for ours, kafkas in zip_longest(told[part], recorded()[part], fillvalue="nothing")
        if ours != kafkas and not (JUDGE == "appliance" and ours.startswith(tuple(DIFFERENT)))
    ]
    assert not different, "\n".join(f"{ours}\n    Kafka: {kafkas}" for ours, kafkas in different)
