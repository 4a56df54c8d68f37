"""Which quota counts, level by level."""

from __future__ import annotations

from itertools import product

import pytest

from appliance.access.client_quotas import Budget, IpRates, QuotaRules
from appliance.cluster import ClientQuotas, QuotaEntity

KEY = "producer_byte_rate"
LEVELS = (
    (QuotaEntity(user="u", client_id="c"), ("u", "c")),
    (QuotaEntity(user="u", client_id=""), ("u", "c")),
    (QuotaEntity(user="u"), ("u", "")),
    (QuotaEntity(user="", client_id="c"), ("u", "c")),
    (QuotaEntity(user="", client_id=""), ("u", "c")),
    (QuotaEntity(user=""), ("u", "")),
    (QuotaEntity(client_id="c"), ("", "c")),
    (QuotaEntity(client_id=""), ("", "c")),
)
"""The most specific first, and by what its budget is shared."""


def rules(*entities: QuotaEntity, key: str = KEY) -> QuotaRules:
    return QuotaRules(KEY, [ClientQuotas(each, {key: float(at + 1)}) for at, each in enumerate(entities)])


@pytest.mark.parametrize("chosen", list(product((False, True), repeat=8)))
def test_the_most_specific_quota_counts(chosen: tuple[bool, ...]) -> None:
    there = [level for level, is_there in zip(LEVELS, chosen, strict=True) if is_there]
    found = rules(*(entity for entity, _ in there)).budget("u", "c")
    assert found == (Budget(1.0, *there[0][1]) if there else None)


def test_a_quota_of_another_key_or_of_an_address_does_not_count() -> None:
    assert rules(QuotaEntity(user="u"), key="consumer_byte_rate").budget("u", "c") is None
    assert not rules(QuotaEntity(ip=""))


def test_names_of_others_do_not_count() -> None:
    made = rules(QuotaEntity(user="v"), QuotaEntity(client_id="d"), QuotaEntity(user="", client_id="d"))
    assert made.budget("u", "c") is None
    assert made.budget("u", "d") == Budget(3.0, "u", "d")


def test_a_session_without_a_client_id_has_the_default_quota() -> None:
    assert rules(QuotaEntity(client_id="")).budget("u", "") == Budget(1.0, "", "")
    assert rules(QuotaEntity(user="u", client_id="")).budget("u", "") == Budget(1.0, "u", "")
    assert rules(QuotaEntity(client_id="c")).budget("u", "") is None


def test_an_address_has_its_own_rate_or_the_default() -> None:
    key = "connection_creation_rate"
    rates = IpRates(
        [ClientQuotas(QuotaEntity(ip="10.0.0.1"), {key: 2.0}), ClientQuotas(QuotaEntity(ip=""), {key: 9.0})]
    )
    assert [rates.bound(host) for host in ("10.0.0.1", "10.0.0.2")] == [2.0, 9.0]
    assert IpRates(()).bound("10.0.0.1") is None
    assert not IpRates([ClientQuotas(QuotaEntity(user="u"), {KEY: 1.0})])
