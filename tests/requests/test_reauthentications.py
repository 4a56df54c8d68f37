"""Clients that authenticate again: what the audit journal hears of it."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from appliance.errors import MalformedFrame
from appliance.requests.authentication import Authenticated, Authentication
from appliance.requests.reauthentications import Lifetime, Reauthentications


def test_a_repeated_authentication_that_is_not_decided_is_in_the_journal() -> None:
    auditing, pool = Mock(), Mock()
    repeated = Reauthentications(
        frame_bytes_max=1000,
        max_reauth_ms=0,
        failed_delay_ms=0,
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
