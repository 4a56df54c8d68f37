"""Requests that need no log: decode, let the API's handler decide, encode; ask the controller where it must. All in
pieces (`long_requests`), since a request may name 100,000 things, and a short one ask for everything.

Metadata answers are the same for every client that came by the same address until the image changes, and they cost
much to encode. So the body of an answer is kept under the bytes of its question, and sent again with another
correlation id.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import msgspec

from appliance.channels.partition_table import PartitionTable
from appliance.config import Settings
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.headers import response_frame
from appliance.protocol.messages import decode_request_in_pieces, encode_response_body_in_pieces, prepare
from appliance.requests.local_handlers.alter_configs import alter_configs
from appliance.requests.local_handlers.alter_partition_reassignments import alter_partition_reassignments
from appliance.requests.local_handlers.api_versions import api_versions
from appliance.requests.local_handlers.create_partitions import create_partitions
from appliance.requests.local_handlers.create_topics import create_topics
from appliance.requests.local_handlers.delete_topics import delete_topics
from appliance.requests.local_handlers.describe_cluster import describe_cluster
from appliance.requests.local_handlers.describe_configs import describe_configs
from appliance.requests.local_handlers.describe_topic_partitions import describe_topic_partitions
from appliance.requests.local_handlers.elect_leaders import elect_leaders
from appliance.requests.local_handlers.find_coordinator import find_coordinator
from appliance.requests.local_handlers.incremental_alter_configs import incremental_alter_configs
from appliance.requests.local_handlers.init_producer_id import init_producer_id
from appliance.requests.local_handlers.list_config_resources import list_config_resources
from appliance.requests.local_handlers.list_partition_reassignments import list_partition_reassignments
from appliance.requests.local_handlers.metadata import asked_by_id, metadata
from appliance.requests.local_handlers.view import LocalView, ProducerIds
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.long_requests import LongRequests
from appliance.requests.session import Request, Session
from appliance.requests.steps import Steps, answering
from appliance.requests.topic_routes import TopicRoutes

Handler = Callable[[Any, LocalView], Any]

HANDLERS: Mapping[int, Handler] = {
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.METADATA: metadata,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: list_config_resources,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
}

PREPARED = ((int(ApiKey.API_VERSIONS), 3), (int(ApiKey.METADATA), 12))
"""Compiled before the first client asks; other codecs are compiled when they are first used."""

_Question = tuple[int, int, bytes, str | None]
"""What an answer is kept under: slot, version, body of the request, host that the client is told."""

KEPT_ANSWERS_MAX = 64
KEPT_BYTES_MAX = 16 << 20
KEPT_QUESTION_BYTES = 64 << 10


def prepare_codecs() -> None:
    """Compile the codecs of what a client asks first, ApiVersions and Metadata."""
    prepare(*PREPARED)


class LocalRequests:
    """Serves every API in HANDLERS for one network process."""

    __slots__ = ("_finish", "_kept", "_kept_bytes", "_kept_version", "_long", "_pool", "_routes", "_views")

    def __init__(
        self,
        settings: Settings,
        routes: TopicRoutes,
        *,
        long: LongRequests,
        pool: BufferPool,
        producer_ids: ProducerIds,
        partitions: PartitionTable,
        finish: Finish,
    ) -> None:
        self._routes = routes
        self._long = long
        self._pool = pool
        self._finish = finish
        self._views = [
            LocalView(settings, routes, slot, producer_ids, partitions) for slot in range(settings.slots)
        ]
        self._kept: dict[_Question, bytes] = {}
        self._kept_bytes = 0
        self._kept_version = -1

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> None:
        """Answers now, or in pieces, or when the controller has. A body that does not parse closes its connection."""
        session = pending.session
        if pending.api_key == ApiKey.METADATA and end - position <= KEPT_QUESTION_BYTES:
            question = (session.slot, pending.version, bytes(view[position:end]), session.told_host)
            kept = self._kept_answer(question)
            if kept is not None:
                self._finish_body(pending, kept)
                return
            steps = self._serve(pending, view, position, end, question)
        else:
            steps = self._serve(pending, view, position, end, None)
        self._long.begin(pending, steps, end - position)

    def _serve(
        self, pending: Request, view: memoryview, position: int, end: int, question: _Question | None
    ) -> Steps[None]:
        key, version = pending.api_key, pending.version
        request = yield from decode_request_in_pieces(key, version, view, position, end)
        pending.give_block(self._pool)
        if key == ApiKey.METADATA and (refused := asked_by_id(request, version)) is not None:
            yield from answering(self._finish, pending, refused)
            return
        image_version = self._routes.version
        response = HANDLERS[key](request, self._view_of(pending.session))
        if isinstance(response, Generator):
            response = yield from response
        if key == ApiKey.API_VERSIONS:
            response = response.of_version(version)
        body = yield from encode_response_body_in_pieces(key, version, response)
        if (
            question is not None
            and image_version == self._routes.version == self._kept_version
            # Of what does not exist the next one who asks may begin the creation again.
            and not any(topic.error_code for topic in response.topics)
        ):
            self._keep(question, body)
        self._finish_body(pending, body)

    def _view_of(self, session: Session) -> LocalView:
        view = self._views[session.slot]
        host = session.told_host
        return view if host is None else msgspec.structs.replace(view, told_host=host)

    def _finish_body(self, pending: Request, body: bytes) -> None:
        header = ApiKey(pending.api_key).response_header_version(pending.version)
        self._finish(pending, [response_frame(header, pending.correlation_id, body)])

    def _kept_answer(self, key: _Question) -> bytes | None:
        version = self._routes.version
        if version != self._kept_version:
            self._kept.clear()
            self._kept_bytes = 0
            self._kept_version = version
            return None
        return self._kept.get(key)

    def _keep(self, key: _Question, body: bytes) -> None:
        if len(self._kept) >= KEPT_ANSWERS_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[key] = body
        self._kept_bytes += len(body) + len(key[2])
