"""What an application hears of rebalances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance_client.values import TopicPartition


class RebalanceListener:
    """Told within `poll` of what the group gives to this consumer and takes from it. Override what is wanted."""

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> Any:
        """These are new; a seek here counts."""

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> Any:
        """These go to another member; a commit here still counts."""

    def on_partitions_lost(self, lost: Sequence[TopicPartition]) -> Any:
        """These are somebody else's already; a commit would be refused."""
        return self.on_partitions_revoked(lost)
