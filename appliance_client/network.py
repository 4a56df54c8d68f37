"""The brokers of a cluster: which there are, the connection to each, and who leads what.

A broker is known by its node id. Bootstrap servers have ids of their own, -1 and below, and are asked only while no
broker is known or none of the known answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.api_versions import ApiVersionsResponse
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.metadata import MetadataRequest, MetadataResponse
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import decode_response, encode_request
from appliance.protocol.node_endpoint import CurrentLeader, NodeEndpoint
from appliance_client.connection import Connection
from appliance_client.errors import (
    AuthenticationError,
    BrokerError,
    ClientError,
    TimedOutError,
    TransportError,
    error_of,
)
from appliance_client.options import ConnectionOptions
from appliance_client.scheduling import Event, Outcome, Scheduler, first_of
from appliance_client.wire import TopicKey

NO_LEADER = -1
NAME_CHARACTERS_MAX = 249
"""Of a topic's name. Source: `Topic.java` in Kafka."""
COORDINATORS = -1_000_000
"""`COORDINATORS - node_id` is a second connection to that broker, for a group's coordinator."""


class Leader(NamedTuple):
    """Who leads a partition, -1 for nobody, and since which epoch."""

    node_id: int
    epoch: int


class Topic:
    """A topic as the last metadata told it. Replaced as a whole, except for leaders that a broker hinted at."""

    __slots__ = ("available", "error_code", "is_internal", "key", "leaders", "name")

    def __init__(
        self, key: TopicKey, leaders: list[Leader], *, error_code: int = 0, is_internal: bool = False
    ) -> None:
        self.key = key
        self.name = key.name
        self.leaders = leaders
        self.error_code = error_code
        self.is_internal = is_internal
        self.available = [index for index, leader in enumerate(leaders) if leader.node_id != NO_LEADER]

    @property
    def partitions(self) -> int:
        return len(self.leaders)


class Network:
    """Connections by node id. The transport takes `to_open`, `to_close` and `dirty` after each run."""

    def __init__(self, scheduler: Scheduler, options: ConnectionOptions) -> None:
        self.scheduler = scheduler
        self.options = options
        self.endpoints: dict[int, tuple[str, int]] = {
            -1 - number: address for number, address in enumerate(options.addresses)
        }
        self.to_open: list[Connection] = []
        self.to_close: list[Connection] = []
        self.dirty: dict[Connection, None] = {}
        self.closed = False
        self.features: dict[str, int] = {}
        self._features_epoch = -1
        self.on_change: Callable[[], None] = lambda: None
        """Called when a connection became ready or was lost."""
        self.run_aside: Callable[[Callable[[], Any], Outcome[Any]], None] = _run_here
        """Runs a function of the application that may take long, and gives its outcome; a driver's, without waiting."""
        self._connections: dict[int, Connection] = {}
        self._tried: dict[int, float] = {}

    def connection(self, node_id: int) -> Connection:
        """The connection to a broker, which may not be open.

        Raises:
            TransportError: no such broker is known.
        """
        found = self._connections.get(node_id)
        if found is None:
            if self.broker_of(node_id) not in self.endpoints:
                raise TransportError(f"no broker with the id {node_id} is known")
            found = self._connections[node_id] = Connection(self, node_id)
        return found

    @staticmethod
    def broker_of(node_id: int) -> int:
        """The broker that a connection's id stands for."""
        return COORDINATORS - node_id if node_id <= COORDINATORS else node_id

    def address(self, node_id: int, attempt: int = 0) -> tuple[str, int]:
        """Where the broker of a connection listens.

        Beside TCP each bootstrap address leads to every broker, so each attempt takes the next one.
        """
        if self.options.scheme != "kafka" and self.broker_of(node_id) >= 0:
            return self.options.addresses[attempt % len(self.options.addresses)]
        if self.options.data_directory is not None and self.broker_of(node_id) < 0:
            return self.options.address_now()
        return self.endpoints.get(self.broker_of(node_id), ("?", 0))

    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    def any_node(self) -> int:
        """A broker to ask what any of them can answer: a connected one, else the one not tried for longest."""
        ready = [each for each in self._connections.values() if each.state == Connection.READY]
        ready = [each for each in ready if each.node_id > COORDINATORS]
        known = [each for each in ready if each.node_id >= 0] or ready
        if known:
            return min(known, key=lambda each: each.in_flight).node_id
        candidates = list(self.endpoints)
        random.shuffle(candidates)
        chosen = min(candidates, key=lambda node_id: self._tried.get(node_id, 0.0))
        self._tried[chosen] = self.scheduler.now_s
        return chosen

    def learn_endpoint(self, node_id: int, host: str, port: int) -> None:
        """Where a broker listens, as a broker said. Beside TCP the address of the bootstrap serves for all of them."""
        if node_id < 0:
            return
        if self.options.scheme != "kafka":
            host, port = self.options.addresses[0]
        if self.endpoints.get(node_id, (host, port)) != (host, port):
            for moved in (self._connections.get(node_id), self._connections.get(COORDINATORS - node_id)):
                if moved is not None and moved.state != Connection.IDLE:
                    moved.drop("the broker moved to another address")
        self.endpoints[node_id] = (host, port)

    def learn_features(self, answer: ApiVersionsResponse) -> None:
        """What the cluster has agreed on; the newest epoch counts."""
        if answer.finalized_features_epoch >= self._features_epoch:
            self._features_epoch = answer.finalized_features_epoch
            self.features = {each.name: each.max_version_level for each in answer.finalized_features}

    async def call(
        self,
        node_id: int,
        api: ApiKey,
        request: Any,
        *,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request to a broker and return its answer; `request` may be a function of the version.

        Raises:
            TransportError, UnsupportedVersionError: as `Connection.call`.
        """
        client_id = self.options.client_id

        def make(version: int, correlation_id: int) -> Sequence[bytes]:
            shape = request(version) if callable(request) else request
            return (encode_request(api, version, shape, correlation_id, client_id=client_id),)

        def read(version: int, frame: memoryview) -> Any:
            return decode_response(api, version, frame)[1]

        connection = self.connection(node_id)
        return await connection.call(
            api,
            make,
            read,
            version_max=api.max_version if version_max is None else version_max,
            timeout_s=self.options.request_timeout_ms / 1000 if timeout_s is None else timeout_s,
        )

    def backoff_s(self, attempt: int) -> float:
        """How long to wait before attempt `attempt` + 1, from 0 on (KIP-580)."""
        longest = max(self.options.retry_backoff_max_ms, self.options.retry_backoff_ms)
        wait_ms = min(self.options.retry_backoff_ms * (1 << min(attempt, 20)), longest)
        return wait_ms / 1000 * random.uniform(0.8, 1.2)

    async def find_coordinator(self, key: str, kind: int, deadline_s: float) -> int:
        """The node id of the coordinator of a group (kind 0) or of a transactional id (1).

        Raises:
            TimedOutError: none was found before `deadline_s`.
            BrokerError: the broker refused with an error that does not pass.
            AuthenticationError: it refuses the login.
        """
        attempt = 0
        last: Exception | None = None
        while True:
            try:
                answer = await self.call(
                    self.any_node(),
                    ApiKey.FIND_COORDINATOR,
                    lambda version: FindCoordinatorRequest(
                        key=key if version < 4 else "",
                        key_type=kind,
                        coordinator_keys=(key,) if version >= 4 else (),
                    ),
                    version_max=5,
                )
                found = answer.coordinators[0] if answer.coordinators else answer
                if not found.error_code:
                    self.learn_endpoint(found.node_id, found.host, found.port)
                    return int(found.node_id)
                error = error_of(found.error_code, found.error_message)
                if not error.retriable:
                    raise error
                last = error
            except AuthenticationError:
                raise
            except TransportError as lost:
                last = lost
            wait_s = self.backoff_s(attempt)
            attempt += 1
            if self.scheduler.now_s + wait_s > deadline_s:
                raise TimedOutError(f"no coordinator of {key}: {last}")
            await self.scheduler.sleep(wait_s)

    def close(self) -> None:
        """Lose every connection."""
        self.closed = True
        for each in self._connections.values():
            if each.state != Connection.IDLE:
                each.drop("the client is closed")


class Metadata:
    """Topics and their leaders, asked for again when they are old or wrong.

    Other threads may read `topics`: a topic's `leaders` list only ever has entries replaced.

    A topic that nobody has used for `metadata.max.idle.ms` is forgotten, so that names that were written or read once
    are not asked for as long as the client lives. Source: `ProducerMetadata.java`.
    """

    def __init__(self, network: Network, *, auto_create: bool) -> None:
        self.topics: dict[str, Topic] = {}
        self.names: dict[UUID, str] = {}
        self.all_topics = False
        self.on_change: Callable[[], None] = lambda: None
        self.last_error: ClientError | None = None
        self.on_refused: Callable[[AuthenticationError], None] = lambda _error: None
        """Called when a broker refuses the client's login."""
        self._refusals = 0
        self._network = network
        self._scheduler = network.scheduler
        self._auto_create = auto_create
        self.in_use: Callable[[], Iterable[str]] = lambda: ()
        """What is not to be forgotten, for however long nobody calls `want`."""
        self._wanted: dict[str, float] = {}
        """When each topic was used last."""
        self._needed = Event()
        self._fresh: Outcome[None] = Outcome()

    def want(self, *names: str) -> None:
        """Keep these topics up to date, as long as they are used.

        Raises:
            BrokerError: as `checked_name`.
        """
        now_s = self._scheduler.now_s
        for name in names:
            if name not in self._wanted:
                checked_name(name)
                self._needed.set()
            self._wanted[name] = now_s

    def request_update(self) -> None:
        """Ask again soon: a leader is missing or was the wrong one."""
        self._needed.set()

    def updated(self) -> Outcome[None]:
        """Done with the next answer."""
        self._needed.set()
        return self._fresh

    async def topic(self, name: str, deadline_s: float) -> Topic:
        """A topic that can be written to or read from.

        Raises:
            BrokerError: the topic cannot be used, or still does not exist at `deadline_s`.
            TimedOutError: nobody could be asked before `deadline_s`.
            AuthenticationError: a broker refuses the login.
        """
        refusals = self._refusals
        while True:
            self.want(name)
            if self._refusals != refusals and self.last_error is not None:
                raise self.last_error
            found = self.topics.get(name)
            if found is not None and not found.error_code:
                return found
            if found is not None and not error_of(found.error_code).retriable:
                self._wanted.pop(name, None)
                self._forget(name)
                raise error_of(found.error_code, f"topic {name}")
            if self._scheduler.now_s >= deadline_s:
                if found is not None:
                    raise error_of(found.error_code, f"topic {name}")
                raise TimedOutError(f"no metadata of topic {name}: {self.last_error or 'no answer yet'}")
            await first_of(self.updated(), self._scheduler.sleep(deadline_s - self._scheduler.now_s))

    def refusals(self, names: Iterable[str]) -> Iterator[ClientError]:
        """Why topics among these cannot be read, for reasons that do not pass by themselves."""
        for name in names:
            topic = self.topics.get(name)
            if topic is not None and topic.error_code:
                error = error_of(topic.error_code, f"topic {name}")
                if not error.retriable:
                    yield error

    def leader(self, topic: str, partition: int) -> Leader | None:
        """Who leads a partition, None where it is not known."""
        found = self.topics.get(topic)
        if found is None or partition >= len(found.leaders):
            return None
        leader = found.leaders[partition]
        return leader if leader.node_id != NO_LEADER else None

    def request_update_since(self, place: tuple[str, int], leader_epoch: int) -> None:
        """Ask for metadata unless a leader of this epoch, or a later one, is known."""
        found = self.leader(*place)
        if found is None or found.epoch < leader_epoch:
            self.request_update()

    def hint(
        self,
        topic: str,
        partition: int,
        leader: CurrentLeader | None,
        endpoints: Sequence[NodeEndpoint],
    ) -> None:
        """A broker said who leads now (KIP-951). Only what is newer than what is known counts."""
        for each in endpoints:
            self._network.learn_endpoint(each.node_id, each.host, each.port)
        known = self.topics.get(topic)
        if leader is None or leader.leader_id < 0 or known is None or partition >= len(known.leaders):
            self.request_update()
            return
        if (
            leader.leader_epoch > known.leaders[partition].epoch
            and leader.leader_id in self._network.endpoints
        ):
            known.leaders[partition] = Leader(leader.leader_id, leader.leader_epoch)
            self.on_change()
        else:
            self.request_update()

    async def keep_up(self) -> None:
        """Ask whenever it is needed or the last answer is old. Never returns."""
        attempt = 0
        while True:
            if not self._needed.is_set:
                age_s = self._network.options.metadata_max_age_ms / 1000
                await first_of(self._needed.wait(), self._scheduler.sleep(age_s))
            self._needed.clear()
            if not self._wanted and not self.all_topics and self.topics:
                continue
            complete = await self._refresh()
            attempt = 0 if complete else attempt + 1
            if not complete:
                self._needed.set()
            # Never more often than the backoff, however many find a leader missing.
            await self._scheduler.sleep(self._network.backoff_s(max(0, attempt - 1)))

    async def _refresh(self) -> bool:
        """Ask once; whether all was told that is wanted."""
        names = None if self.all_topics else tuple(self._wanted)
        selectors = None if names is None else tuple(TopicSelector(name=name) for name in names)
        request = MetadataRequest(selectors, allow_auto_topic_creation=self._auto_create)
        try:
            answer: MetadataResponse = await self._network.call(
                self._network.any_node(), ApiKey.METADATA, request
            )
        except ClientError as error:
            self.last_error = error
            if isinstance(error, AuthenticationError):
                self._refused(error)
            return False
        self.last_error = None
        complete = self._learn(answer, is_all=names is None)
        self._forget_idle()
        fresh, self._fresh = self._fresh, Outcome()
        fresh.resolve(None)
        self.on_change()
        return complete

    def _refused(self, error: AuthenticationError) -> None:
        """Wake all calls that wait for metadata. They get the error."""
        self._refusals += 1
        waiting, self._fresh = self._fresh, Outcome()
        waiting.resolve(None)
        self.on_refused(error)
        self.on_change()

    def _forget_idle(self) -> None:
        now_s = self._scheduler.now_s
        for name in self.in_use():
            self._wanted[name] = now_s
        idle_s = self._network.options.metadata_max_idle_ms / 1000
        for name in [name for name, used_s in self._wanted.items() if used_s + idle_s < now_s]:
            del self._wanted[name]
        if not self.all_topics:
            for name in [name for name in self.topics if name not in self._wanted]:
                self._forget(name)

    def _forget(self, name: str) -> None:
        topic_id = self.topics.pop(name).key.topic_id
        if topic_id is not None and self.names.get(topic_id) == name:
            del self.names[topic_id]

    def _learn(self, answer: MetadataResponse, *, is_all: bool) -> bool:
        for broker in answer.brokers:
            self._network.learn_endpoint(broker.node_id, broker.host, broker.port)
        complete = True
        told = set()
        for each in answer.topics:
            if each.name is None:
                continue
            told.add(each.name)
            old = self.topics.get(each.name)
            leaders = [Leader(NO_LEADER, -1)] * len(each.partitions)
            for part in each.partitions:
                if 0 <= part.partition_index < len(leaders):
                    is_known = part.leader_id >= 0 and part.leader_id in self._network.endpoints
                    leader_id = part.leader_id if is_known else NO_LEADER
                    leaders[part.partition_index] = Leader(leader_id, part.leader_epoch)
                    complete = complete and is_known
            if each.error_code and error_of(each.error_code).retriable:
                # Unknown may be wanted for ever by a consumer: that is no reason to ask every 100 ms.
                complete = complete and each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if old is not None and old.key.topic_id == each.topic_id:
                leaders = _newer(old.leaders, leaders)
            elif old is not None and old.key.topic_id is not None:
                self.names.pop(old.key.topic_id, None)
            topic = Topic(
                TopicKey(each.name, each.topic_id),
                leaders,
                error_code=each.error_code,
                is_internal=each.is_internal,
            )
            self.topics[each.name] = topic
            if each.topic_id is not None:
                self.names[each.topic_id] = each.name
        if self.all_topics and is_all:
            for name in [name for name in self.topics if name not in told]:
                self._forget(name)
        return complete


def _newer(known: list[Leader], told: list[Leader]) -> list[Leader]:
    """The leaders that were told, where none with a later epoch is known."""
    found = list(told)
    for index, (old, new) in enumerate(zip(known, told, strict=False)):
        if old.epoch > new.epoch >= 0:
            found[index] = old
    return found


def checked_name(name: Any) -> str:
    """Return a topic's name if a request can carry it. The broker decides whether the name is valid.

    Raises:
        BrokerError: INVALID_TOPIC_EXCEPTION. One such name would make every later metadata request fail.
    """
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX:
        try:
            name.encode()
        except UnicodeEncodeError:
            pass
        else:
            return name
    raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"no topic can have the name {repr(name)[:80]}")


def _run_here(work: Callable[[], Any], outcome: Outcome[Any]) -> None:
    """Run it at once, where no driver does better."""
    try:
        outcome.resolve(work())
    except Exception as error:
        outcome.reject(error)
