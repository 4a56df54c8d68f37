"""The README's table is the truth."""

from __future__ import annotations

import pytest

from tests.clients.client import Client
from tests.clients.matrix import CLIENTS, LIBRARIES, PAGE, page_with_fresh_matrix
from tests.clients.scenarios import SCENARIOS, cells
from tests.clients.transaction_scenarios import TRANSACTION_SCENARIOS, transaction_cells
from tests.clients.transactional.library import TransactionalLibrary


def test_readme_shows_every_cell_that_a_client_leaves_out() -> None:
    assert PAGE.read_text() == page_with_fresh_matrix(), "run: python -m tests.clients.matrix"


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.name)
def test_a_client_plays_every_scenario_or_says_why_not(kind: type[Client]) -> None:
    assert len(cells(kind)) + len(kind.left_out) == len(SCENARIOS)
    assert all(reason.strip() for reason in kind.left_out.values())


@pytest.mark.parametrize("kind", LIBRARIES, ids=lambda kind: kind.name)
def test_a_library_plays_every_transaction_or_says_why_not(kind: type[TransactionalLibrary]) -> None:
    assert len(transaction_cells(kind)) + len(kind.left_out) == len(TRANSACTION_SCENARIOS)
    assert all(reason.strip() for reason in kind.left_out.values())
