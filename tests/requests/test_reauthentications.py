"""Clients that authenticate again: what the audit journal hears of it, and how long a failure waits."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from appliance.errors import MalformedFrame
from appliance.netproc.address_failures import FREE_FAILURES, AddressFailures
from appliance.requests.authentication import Authenticated, Authentication, State
from appliance.requests.reauthentications import Lifetime, Reauthentications


def test_a_repeated_authentication_that_is_not_decided_is_in_the_journal() -> None:
    auditing, pool = Mock(), Mock()
    repeated = Reauthentications(
        frame_bytes_max=1000,
        max_reauth_ms=0,
        failed=lambda _host, _now_ns: 0,
        pool=pool,
        timers=Mock(),
        clock=Mock(monotonic_ns=lambda: 0),
        finish=Mock(),
        refuse=Mock(),
        auditing=auditing,
    )
    lifetime = Lifetime({}, Authenticated("OAUTHBEARER", "User:alice", 9), 9)
    lifetime.under_way = Mock(spec=Authentication, mechanism="OAUTHBEARER")
    lifetime.under_way.take = Mock(side_effect=MalformedFrame("no keys"))
    session, block = Mock(lifetime=lifetime), Mock(view=memoryview(bytes(100)))
    with pytest.raises(MalformedFrame):
        repeated.takes(session, block, 0, 100)
    auditing.failed.assert_called_once_with(session, mechanism="OAUTHBEARER", claimed="", why="no keys")
    pool.give.assert_called_once_with(block)


def test_failures_of_both_kinds_wait_longer_and_longer() -> None:
    failures = AddressFailures(100)
    for _ in range(FREE_FAILURES):
        failures.failed("10.0.0.7", 0)  # clients that were no sessions yet
    timers = Mock()
    repeated = Reauthentications(
        frame_bytes_max=1000,
        max_reauth_ms=0,
        failed=failures.failed,
        pool=Mock(),
        timers=timers,
        clock=Mock(monotonic_ns=lambda: 0),
        finish=Mock(),
        refuse=Mock(),
    )
    for wait_ms in (200, 400, 800):
        lifetime = Lifetime({}, Authenticated("PLAIN", "User:alice", 9), 9)
        lifetime.under_way = Mock(spec=Authentication, mechanism="PLAIN", state=State.FAILED, why="wrong")
        lifetime.under_way.take = Mock(return_value=b"answer")
        session = Mock(lifetime=lifetime, peer_host="::ffff:10.0.0.7")
        assert repeated.takes(session, Mock(view=memoryview(bytes(100))), 0, 100)
        assert timers.add.call_args.args[0] == wait_ms * 1_000_000
