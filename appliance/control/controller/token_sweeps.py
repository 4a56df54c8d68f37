"""The rounds in which the controller removes delegation tokens that have expired.

Nobody can log in with such a token before its removal either: network processes compare the times themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from appliance.clock import Clock
from appliance.control.controller.alarms import Alarms
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.deciding import Turn
from appliance.control.controller.token_commands import SWEPT_AT_ONCE, plan_sweep

SOON_MS: Final = 100
"""Until the next part of a round that is too large for one change of the store."""

_logger = logging.getLogger(__name__)


class TokenSweeps:
    """Those of one controller.

    Args:
        interval_ms: between two rounds.
        carry_out: writes what a turn decided; returns whether the store took it.
    """

    __slots__ = ("_alarms", "_carry_out", "_clock", "_interval_ms", "_state")

    def __init__(
        self,
        state: ClusterState,
        *,
        interval_ms: int,
        carry_out: Callable[[Turn], bool],
        alarms: Alarms,
        clock: Clock,
    ) -> None:
        self._state = state
        self._interval_ms = interval_ms
        self._carry_out = carry_out
        self._alarms = alarms
        self._clock = clock

    def begin(self) -> None:
        """Set the alarm of the first round."""
        self._alarms(self._interval_ms, self._sweep)

    def _sweep(self) -> None:
        turn = Turn()
        expired = plan_sweep(turn, self._state, now_ms=self._clock.now_ms())
        # What the store does not take now is removed in the next round.
        is_done = bool(expired) and self._carry_out(turn)
        has_more = is_done and len(expired) == SWEPT_AT_ONCE
        self._alarms(SOON_MS if has_more else self._interval_ms, self._sweep)
        if is_done:
            for token in expired:
                _logger.info("delegation token %s of %s has expired", token.token_id, token.owner)
