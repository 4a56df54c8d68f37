"""Offsets by time, asked of the leaders: ListOffsets."""

from __future__ import annotations

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from appliance.protocol.errors import ErrorCode
from appliance_client.core import Core
from appliance_client.errors import AuthenticationError, ClientError, TimedOutError, TransportError, error_of
from appliance_client.options import ConsumerOptions
from appliance_client.values import OffsetAndTimestamp, TopicPartition


class OffsetLookup:
    """Asks until each partition's leader has answered."""

    def __init__(self, options: ConsumerOptions, core: Core) -> None:
        self._options = options
        self._scheduler = core.scheduler
        self._network = core.network
        self._metadata = core.metadata

    async def find(
        self, wanted: dict[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The offset at each time (ms since 1970, or one of ListOffsets' special values); -1 where there is none.

        Raises:
            TimedOutError, BrokerError: not all could be found.
        """
        deadline_s = self._scheduler.now_s + timeout_s
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        isolation = self._options.isolation
        attempt = 0
        last: ClientError | None = None
        while len(found) < len(wanted):
            by_node: dict[int, list[TopicPartition]] = {}
            for place in wanted:
                if place in found:
                    continue
                topic = await self._metadata.topic(place.topic, deadline_s)
                if not 0 <= place.partition < topic.partitions:
                    raise error_of(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"{place.topic} has partitions 0 to {topic.partitions - 1}, not {place.partition}",
                    )
                leader = self._metadata.leader(*place)
                if leader is not None:
                    by_node.setdefault(leader.node_id, []).append(place)
            for node_id, places in by_node.items():
                try:
                    last = await self._list_offsets_of(node_id, places, wanted, isolation, found) or last
                except AuthenticationError:
                    raise
                except TransportError as error:
                    last = error
            if len(found) == len(wanted):
                break
            self._metadata.request_update()
            wait_s = self._network.backoff_s(attempt)
            attempt += 1
            if self._scheduler.now_s + wait_s > deadline_s:
                raise TimedOutError(f"offsets: {last or 'no leader'}")
            await self._scheduler.sleep(wait_s)
        return found

    async def _list_offsets_of(
        self,
        node_id: int,
        places: list[TopicPartition],
        wanted: dict[TopicPartition, int],
        isolation: int,
        found: dict[TopicPartition, OffsetAndTimestamp],
    ) -> ClientError | None:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for place in places:
            leader = self._metadata.leader(*place)
            topics.setdefault(place.topic, []).append(
                ListOffsetsPartition(place.partition, wanted[place], leader.epoch if leader else -1)
            )
        listed = tuple(ListOffsetsTopic(name, tuple(parts)) for name, parts in topics.items())
        request = ListOffsetsRequest(-1, listed, isolation, self._options.request_timeout_ms)
        answer = await self._network.call(node_id, ApiKey.LIST_OFFSETS, request)
        last: ClientError | None = None
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code:
                    last = error_of(part.error_code, f"{topic.name}-{part.partition_index}")
                    if not last.retriable:
                        raise last
                else:
                    found[TopicPartition(topic.name, part.partition_index)] = OffsetAndTimestamp(
                        part.offset, part.timestamp_ms, part.leader_epoch
                    )
        return last
