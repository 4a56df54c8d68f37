"""Transactions: which there are, in which state, for how long; one in full. View only (`appliance transactions`)."""

from __future__ import annotations

from appliance.console.kafka_link import BrokerFault, check
from appliance.console.pages.paging import part_of
from appliance.console.server import Response
from appliance.console.visit import NotThere, Visit
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_transactions import DescribedTransaction, DescribeTransactionsRequest
from appliance.protocol.apis.find_coordinator import TRANSACTION, FindCoordinatorRequest
from appliance.protocol.apis.list_transactions import ListedTransaction, ListTransactionsRequest
from appliance.protocol.errors import ErrorCode


def transactions(visit: Visit) -> Response:
    """The list, in pages; those that are open first."""
    wanted = visit.asked("q").strip()
    found = [each for each in _listed(visit) if wanted.lower() in each.transactional_id.lower()]
    found.sort(key=lambda each: (not is_open(each.transaction_state), each.transactional_id))
    part = part_of(visit, found)
    details = _described(visit, [each.transactional_id for each in part.rows])
    return visit.page(
        "transactions.html", part=part, q=wanted, details=details, now_ms=visit.site.clock.now_ms()
    )


def is_open(state: str) -> bool:
    """Return whether a transaction in this state holds back readers of committed records."""
    return state in {"Ongoing", "PrepareCommit", "PrepareAbort"}


def _listed(visit: Visit) -> list[ListedTransaction]:
    """Return the transactional ids of all slots.

    Raises:
        BrokerFault: no slot answers.
    """
    found: dict[str, ListedTransaction] = {}
    fault: BrokerFault | None = None
    answered = 0
    for slot in visit.link.slots:
        try:
            answer = visit.link.ask(ApiKey.LIST_TRANSACTIONS, 0, ListTransactionsRequest(), slot=slot)
            check(answer.error_code)
        except BrokerFault as error:
            fault = error
            continue
        answered += 1
        found |= {each.transactional_id: each for each in answer.transaction_states}
    if fault is not None and not answered:
        raise fault
    return list(found.values())


def _described(visit: Visit, ids: list[str]) -> dict[str, DescribedTransaction]:
    """Return id → what its coordinator says, for those that one describes now."""
    if not ids:
        return {}
    answer = visit.link.ask(
        ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=tuple(ids))
    )
    by_slot: dict[int, list[str]] = {}
    for each in answer.coordinators:
        if not each.error_code:
            by_slot.setdefault(each.node_id, []).append(each.key)
    found: dict[str, DescribedTransaction] = {}
    for slot, keys in by_slot.items():
        try:
            described = visit.link.ask(
                ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(tuple(keys)), slot=slot
            )
        except BrokerFault:
            continue  # this slot is down; the others' transactions are shown
        found |= {each.transactional_id: each for each in described.transaction_states if not each.error_code}
    return found


def transaction(visit: Visit) -> Response:
    """One transactional id."""
    name = visit.asked("name")
    answer = visit.link.ask(
        ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(name,))
    )
    (place,) = answer.coordinators
    check(place.error_code, place.error_message)
    answer = visit.link.ask(
        ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest((name,)), slot=place.node_id
    )
    (found,) = answer.transaction_states
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise NotThere(f"there is no transactional id {name}")
    check(found.error_code)
    return visit.page("transaction.html", found=found, slot=place.node_id, now_ms=visit.site.clock.now_ms())
