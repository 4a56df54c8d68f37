"""Which topics the command line counts as internal."""

from __future__ import annotations

import pytest

from appliance import cluster
from appliance.cli.topic_names import is_internal

INTERNAL = [
    *sorted(cluster.INTERNAL_TOPICS),
    cluster.DELAYED_STATE,
    f"{cluster.DELAYED_PREFIX}1000",
    "__cluster_metadata",
]


@pytest.mark.parametrize("name", INTERNAL)
def test_topics_of_the_brokers_own_state_are_internal(name: str) -> None:
    assert is_internal(name)


@pytest.mark.parametrize("name", ["orders", "__orders", "__delayed", "__cluster_metadata2", "audit"])
def test_other_topics_are_not(name: str) -> None:
    assert not is_internal(name)
