"""Each request that no library would send gets Apache Kafka's answer (transaction_answers.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.judge import running_broker
from tests.system.transaction_answers import PARTS, answers, recorded


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    with running_broker(tmp_path_factory.mktemp("answers") / "data") as broker:
        yield answers(broker.address)


@pytest.mark.parametrize("part", [part.__name__ for part in PARTS])
def test_a_request_that_no_library_sends_gets_kafkas_answer(part: str, told: dict[str, list[str]]) -> None:
    assert told[part] == recorded()[part]
