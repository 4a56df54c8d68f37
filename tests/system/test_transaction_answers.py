"""Each request that no library would send gets Apache Kafka's answer, byte for byte (transaction_answers.py)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import pytest

from tests.support.judge import ENDS_AT_ONCE, running_broker
from tests.system.transaction_answers import PARTS, answers, recorded


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    with running_broker(tmp_path_factory.mktemp("answers") / "data", ENDS_AT_ONCE) as broker:
        yield answers(broker.address)


@pytest.mark.parametrize("part", [part.__name__ for part in PARTS])
def test_a_request_that_no_library_sends_gets_kafkas_answer(part: str, told: dict[str, list[str]]) -> None:
    different = [
        (ours, kafkas)
        for ours, kafkas in zip_longest(told[part], recorded()[part], fillvalue="nothing")
        if ours != kafkas
    ]
    assert not different, "\n".join(f"{ours}\n    Kafka: {kafkas}" for ours, kafkas in different)
