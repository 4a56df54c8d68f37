"""The native client as a member, of a classic group, of one of KIP-848, or of a classic one that broadcasts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from appliance_client import ClientError, Consumer
from tests.clients.members.arguments import HEARTBEAT_MS, Leaving, arguments, processed


def main() -> None:
    given, leaving = arguments(), Leaving()
    broadcasts = given.protocol == "broadcast"
    classic: dict[str, Any] = {
        "partition_assignment_strategy": "broadcast" if broadcasts else "range",
        "session_timeout_ms": given.session_ms,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }
    with Consumer(
        given.topic,
        bootstrap_servers=given.address,
        group_id=given.group,
        group_protocol="classic" if broadcasts else given.protocol,
        client_id=given.client_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=50,
        **({} if given.protocol == "consumer" else classic),
    ) as consumer:
        while not leaving.asked:
            polled = consumer.poll(100)
            for place, records in polled.items():
                for record in records:
                    processed(place.partition, record.offset)
            if polled and not broadcasts:
                with suppress(ClientError):  # a rebalance came between: whoever has the partition now goes on
                    consumer.commit()


main()
