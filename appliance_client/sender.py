"""The sender: takes batches out of the accumulator, sends them to the leaders, and decides what an answer means.

`pump` is called whenever something may have changed: a batch is ready, a connection became ready, an answer came, a
leader moved. It sends what can be sent and returns when to look again.

Idempotence (KIP-98): each batch carries producer id, epoch and the sequence of its first record. Up to five batches of
a partition are in flight, and none goes further ahead of one whose answer is missing, even if the others are answered:
a broker remembers the last five batches of a producer, and refuses an older one for ever. (A batch can be in flight to
an old leader, which has written it, while the new leader takes those behind it.) One that is refused for passing
reasons goes back to the head of its queue with its sequence, and those behind it are refused as out of order and follow
it. Where the sequence itself is lost (a batch failed for
good, or the broker forgot the producer), the sender waits until nothing is in flight, takes a new producer id and
counts from 0. Batches of other partitions that may have been written keep their old id, so that none is written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.node_endpoint import NodeEndpoint
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec, compress
from appliance_client.accumulator import NO_SEQUENCE, Accumulator, Batch, PartitionQueue
from appliance_client.arrow_batches import framed_in_place, split_encoded
from appliance_client.connection import Connection, body_cursor
from appliance_client.errors import (
    ClientError,
    DeliveryTimeoutError,
    RecordTooLargeError,
    TransportError,
    error_of,
)
from appliance_client.kernel import encode_records
from appliance_client.network import Metadata, Network
from appliance_client.options import ProducerOptions
from appliance_client.scheduling import Event, Outcome, Scheduler
from appliance_client.transactions import Transactions
from appliance_client.wire import (
    PRODUCE_ADDS_PARTITIONS,
    PRODUCE_BY_ID,
    ProduceAnswer,
    TopicKey,
    batch_header,
    parse_produce_answer,
    produce_request,
)

logger = logging.getLogger("appliance_client")

_SEQUENCE_LOST: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
_ASK_AGAIN: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
)

_REMEMBERED_BATCHES: Final = 5
"""Of a producer and a partition, by a broker. Source: `ProducerStateEntry.NUM_BATCHES_TO_RETAIN` in Kafka."""

_PARTITION_BYTES: Final = 512
"""More than a request has beside the records of one partition: a topic's name of 249 bytes and some numbers."""

Sent = list[tuple[PartitionQueue, Batch]]


class Sender:
    """One producer's way to the brokers. Runs on one thread."""

    def __init__(
        self,
        options: ProducerOptions,
        scheduler: Scheduler,
        network: Network,
        metadata: Metadata,
        accumulator: Accumulator,
    ) -> None:
        self.touch: Callable[[], None] = lambda: None
        """Has `pump` called with the core's next run."""
        self.transactions = Transactions(options, scheduler, network, self)
        self._next_s: float | None = None
        self._options = options
        self._scheduler = scheduler
        self._network = network
        self._metadata = metadata
        self._accumulator = accumulator
        self._in_flight_of: dict[int, int] = {}
        self._in_flight = 0
        self._flushing = 0
        self._producer_id = -1
        self._producer_epoch = -1
        self._asks_for_id = False
        self._id_is_lost = False
        self._progress = Event()
        self._codec: Codec = options.codec
        self._request_timeout_s = options.request_timeout_ms / 1000
        self._delivery_timeout_s = options.delivery_timeout_ms / 1000
        self._version_max = ApiKey.PRODUCE.max_version

    # ── what others ask ──────────────────────────────────────────────────────────────────────────────────

    def progressed(self) -> Outcome[None]:
        """Done when a batch was finished after this call."""
        self._progress.clear()
        return self._progress.wait()

    async def flush(self) -> None:
        """Send all that was appended before, and return when each is acknowledged or has failed."""
        with self._accumulator.lock:
            waited = list(self._accumulator.incomplete.values())
        self._flushing += 1
        self.touch()
        try:
            for batch in waited:
                while not _settled(batch):
                    await self.progressed()
        finally:
            self._flushing -= 1

    async def idle(self) -> None:
        """Return when nothing is in flight."""
        while self._in_flight:
            await self.progressed()

    def fail_all(self, error: BaseException, *, unsent_only: bool = False) -> bool:
        """Drop what waits. What is in flight may have been written; it is told only without `unsent_only`.

        Returns whether a batch among them had a sequence: a later one would leave a gap, or meet it in the log.
        """
        numbered = False
        for queue in self._accumulator.queues():
            with self._accumulator.lock:
                dropped = list(queue.batches)
                queue.batches.clear()
                for batch in dropped:
                    batch.is_open = False
            if not unsent_only:
                dropped += queue.in_flight
            for batch in dropped:
                numbered = numbered or batch.sequence != NO_SEQUENCE
                self._accumulator.finish(batch, -1, -1, error)
        self._progress.set()
        return numbered

    def use_id(self, producer_id: int, epoch: int) -> None:
        """Go on with this id and epoch, sequences from 0. Nothing is in flight."""
        self._producer_id = producer_id
        self._producer_epoch = epoch
        self._id_is_lost = False

    @property
    def producer_id(self) -> int:
        return self._producer_id

    @property
    def producer_epoch(self) -> int:
        return self._producer_epoch

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────

    def pump(self) -> float | None:
        """Send what can be sent now; returns when to look again."""
        accumulator = self._accumulator
        now_s = self._scheduler.now_s
        self._next_s = None
        ready: dict[int, list[PartitionQueue]] = {}
        with accumulator.lock:
            accumulator.has_news = False
            active = accumulator.active
            if any(not queue.batches for queue in active):
                for queue in active:
                    queue.is_active = bool(queue.batches)
                active = accumulator.active = [queue for queue in active if queue.is_active]
            active = list(active)
        for queue in active:
            if self._expire(queue, now_s) and (node_id := self._target(queue, now_s)) is not None:
                ready.setdefault(node_id, []).append(queue)
        if ready and (not self._options.idempotent or self._has_id()):
            for node_id, queues in ready.items():
                self._send_to(node_id, queues)
        return self._next_s

    def _look_again(self, at_s: float) -> None:
        self._next_s = at_s if self._next_s is None else min(self._next_s, at_s)

    def _expire(self, queue: PartitionQueue, now_s: float) -> bool:
        """Fail what waits for too long. Whether something is left."""
        while queue.batches:
            batch = queue.batches[0]
            due_s = batch.created_s + self._delivery_timeout_s
            if now_s < due_s:
                self._look_again(due_s)
                return True
            with self._accumulator.lock:
                queue.batches.popleft()
                batch.is_open = False
            error = DeliveryTimeoutError(
                f"{batch.count} records for {queue.topic}-{queue.partition} were not acknowledged within "
                f"{self._options.delivery_timeout_ms} ms after {batch.attempts} attempts"
                + (f": {self._metadata.last_error}" if self._metadata.last_error else "")
            )
            self._fail(queue, batch, error)
        return False

    def _target(self, queue: PartitionQueue, now_s: float) -> int | None:
        """The leader to send the head of a queue to; None where it must wait."""
        batch = queue.batches[0]
        if batch.is_open and len(queue.batches) == 1 and not self._flushing and not self._accumulator.waiters:
            due_s = batch.created_s + self._accumulator.linger_s
            if now_s < due_s:
                self._look_again(due_s)
                return None
        if queue.retry_at_s > now_s:
            self._look_again(queue.retry_at_s)
            return None
        leader = self._metadata.leader(queue.topic, queue.partition)
        if leader is None:
            self._metadata.want(queue.topic)
            self._metadata.request_update()
            return None
        if self._options.transactional_id is not None and not self.transactions.may_send(queue):
            return None
        return leader.node_id

    def _has_id(self) -> bool:
        """Whether batches can be numbered; asks for an id where there is none."""
        if self._options.transactional_id is not None:
            return self._producer_id >= 0
        if self._id_is_lost and not self._in_flight:
            self._producer_id = -1
        if self._producer_id >= 0 and not self._id_is_lost:
            return True
        if self._producer_id < 0 and not self._asks_for_id:
            self._asks_for_id = True
            self._scheduler.spawn(self._ask_for_id())
        return False

    async def _ask_for_id(self) -> None:
        attempt = 0
        try:
            while not self._network.closed:
                try:
                    answer = await self._network.call(
                        self._network.any_node(),
                        ApiKey.INIT_PRODUCER_ID,
                        InitProducerIdRequest(None, self._options.transaction_timeout_ms),
                    )
                    if not answer.error_code:
                        self.use_id(answer.producer_id, answer.producer_epoch)
                        break
                    error: ClientError = error_of(answer.error_code)
                except ClientError as caught:
                    error = caught
                if not error.retriable:
                    self.fail_all(error)
                    break
                await self._scheduler.sleep(self._network.backoff_s(attempt))
                attempt += 1
        finally:
            self._asks_for_id = False
        self.touch()

    def _send_to(self, node_id: int, queues: list[PartitionQueue]) -> None:
        connection = self._network.connection(node_id)
        if connection.state != Connection.READY:
            connection.open()
            return
        if connection.throttled_until_s > self._scheduler.now_s:
            self._look_again(connection.throttled_until_s)
            return
        most = self._options.max_in_flight_requests_per_connection
        size_max, own = self._request_size_max(connection)
        left = list(queues)
        while left and self._in_flight_of.get(node_id, 0) < most:
            sent: Sent = []
            size = 0
            for queue in list(left):
                batch = self._take(queue, size, size_max)
                if batch is None:
                    left.remove(queue)
                    continue
                assert batch.payload is not None
                size += len(batch.payload) + b.HEADER_BYTES + own
                sent.append((queue, batch))
                if not self._goes_on(queue):
                    left.remove(queue)
            if not sent:
                break
            self._request(connection, node_id, sent)

    def _request_size_max(self, connection: Connection) -> tuple[int, int]:
        """How large the batches of one request may be, and what to count for a batch beside its records.

        A transport that has a limit of its own refuses a larger request, whatever is in it.
        """
        options = self._options
        if connection.request_bytes_max is None:
            return options.max_request_size, 0
        names = len(options.client_id.encode()) + len((options.transactional_id or "").encode())
        room = connection.request_bytes_max - names - _PARTITION_BYTES
        # What is not compressed yet may even grow a little.
        return min(options.max_request_size, room - room // 128), _PARTITION_BYTES

    def _goes_on(self, queue: PartitionQueue) -> bool:
        """Whether the next batch of a queue may be sent too, without waiting."""
        if not queue.batches:
            return False
        return self._target(queue, self._scheduler.now_s) is not None

    def _take(self, queue: PartitionQueue, size_so_far: int, size_max: int) -> Batch | None:
        """The head of a queue, encoded and numbered; None where it must wait."""
        batch = queue.batches[0]
        if size_so_far and size_so_far + batch.size_bytes > size_max:
            return None
        idempotent = self._options.idempotent
        if idempotent and batch.sequence == NO_SEQUENCE:
            identity = (self._producer_id, self._producer_epoch)
            if (queue.producer_id, queue.producer_epoch) != identity:
                if queue.in_flight:
                    return None  # the old id's batches must be written first, or their order is lost
                queue.producer_id, queue.producer_epoch = identity
                queue.next_sequence = 0
                queue.acked_sequence = -1
            if queue.acked_sequence < 0 and queue.in_flight:
                # Kafka takes any first sequence of a producer that it does not know: were the first batch refused for a
                # passing reason and the second one taken, the first one would be out of order for ever.
                return None
        if idempotent and queue.in_flight and _is_too_far_ahead(queue, batch):
            return None
        with self._accumulator.lock:
            batch.is_open = False
            queue.batches.popleft()
        if batch.payload is None:
            batch.payload = compress(
                self._codec, encode_records(batch.records), self._options.compression_level
            )
        if idempotent and batch.sequence == NO_SEQUENCE:
            batch.producer_id, batch.producer_epoch = queue.producer_id, queue.producer_epoch
            batch.sequence = queue.next_sequence
            queue.next_sequence = (queue.next_sequence + batch.count) & b.SEQUENCE_MAX
            batch.place = queue.numbered
            queue.numbered += 1
        return batch

    def _request(self, connection: Connection, node_id: int, sent: Sent) -> None:
        sent.sort(key=lambda each: each[0].topic)
        version_max = self._version_max
        keys: dict[str, TopicKey] = {}
        for queue, _ in sent:
            self._metadata.want(queue.topic)
            topic = self._metadata.topics.get(queue.topic)
            keys[queue.topic] = topic.key if topic is not None else TopicKey(queue.topic, None)
        if any(key.topic_id is None for key in keys.values()):
            version_max = min(version_max, PRODUCE_BY_ID - 1)
        transactional_id = self._options.transactional_id
        if transactional_id is not None and not self.transactions.is_v2:
            version_max = min(version_max, PRODUCE_ADDS_PARTITIONS - 1)
        flags = b.TRANSACTIONAL if transactional_id is not None else 0
        acks = self._options.acks_number

        def make(version: int, correlation_id: int) -> list[b.Buffer]:
            return produce_request(
                version,
                correlation_id,
                self._options.client_id.encode(),
                transactional_id=transactional_id,
                acks=acks,
                timeout_ms=self._options.request_timeout_ms,
                batches=[
                    (keys[queue.topic], queue.partition, _framed(batch, self._codec, flags))
                    for queue, batch in sent
                ],
            )

        def read(version: int, frame: memoryview) -> Any:
            return parse_produce_answer(version, body_cursor(ApiKey.PRODUCE, version, frame))

        for queue, batch in sent:
            queue.in_flight.append(batch)
            batch.attempts += 1
        self._in_flight += len(sent)
        self._in_flight_of[node_id] = self._in_flight_of.get(node_id, 0) + 1
        outcome = connection.call(
            ApiKey.PRODUCE,
            make,
            read if acks else None,
            version_max=version_max,
            timeout_s=self._request_timeout_s,
        )
        outcome.when_done(lambda done: self._answered(connection, node_id, sent, done))

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────

    def _answered(self, connection: Connection, node_id: int, sent: Sent, outcome: Outcome[Any]) -> None:
        self._in_flight_of[node_id] -= 1
        self._in_flight -= len(sent)
        for queue, batch in sent:
            queue.in_flight.remove(batch)
        error = outcome.error
        if error is not None:
            if isinstance(error, TransportError):
                self._metadata.request_update()
            for queue, batch in sent:
                self._judge(queue, batch, error)
        elif self._options.acks_number == 0:
            for _, batch in sent:
                self._accumulator.finish(batch, -1, -1, None)
        else:
            self._take_answers(connection, sent, outcome.result())
        self._progress.set()
        self.touch()

    def _take_answers(
        self,
        connection: Connection,
        sent: Sent,
        result: tuple[list[ProduceAnswer], int, tuple[NodeEndpoint, ...]],
    ) -> None:
        answers, throttle_ms, endpoints = result
        if throttle_ms > 0:
            connection.throttled_until_s = self._scheduler.now_s + throttle_ms / 1000
        told = {(self._name(each.topic), each.partition): each for each in answers}
        for queue, batch in sent:
            answer = told.get((queue.topic, queue.partition))
            if answer is None:
                self._judge(queue, batch, TransportError("the broker's answer leaves the partition out"))
            elif not answer.error_code:
                self._acknowledge(queue, batch, answer)
            else:
                if answer.error_code in _ASK_AGAIN:
                    self._metadata.hint(queue.topic, queue.partition, answer.leader, endpoints)
                self._judge(queue, batch, error_of(answer.error_code, answer.message), answer)

    def _name(self, topic: str | UUID) -> str:
        return topic if isinstance(topic, str) else self._metadata.names.get(topic, "")

    def _acknowledge(self, queue: PartitionQueue, batch: Batch, answer: ProduceAnswer) -> None:
        queue.failures = 0
        if batch.sequence != NO_SEQUENCE and batch.producer_id == queue.producer_id:
            queue.acked_sequence = (batch.sequence + batch.count - 1) & b.SEQUENCE_MAX
        self._accumulator.finish(batch, answer.base_offset, answer.append_time_ms, None)

    def _judge(
        self,
        queue: PartitionQueue,
        batch: Batch,
        error: BaseException,
        answer: ProduceAnswer | None = None,
    ) -> None:
        """Decide what becomes of a batch that was not acknowledged: done, again, in two, or failed."""
        code = getattr(error, "code", -1)
        if answer is not None and code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._acknowledge(queue, batch, answer)
            return
        if isinstance(error, RecordTooLargeError):
            self._too_large_to_send(queue, batch, error)
            return
        if answer is not None and code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._halve(queue, batch)
            return
        if self._options.transactional_id is not None:
            if self.transactions.judge(
                queue, batch, error, retriable=self._may_retry(queue, batch, error, code)
            ):
                self._retry(queue, batch)
            else:
                self._accumulator.finish(batch, -1, -1, error)
            return
        if self._may_retry(queue, batch, error, code):
            self._retry(queue, batch)
            return
        if self._options.idempotent and code in _SEQUENCE_LOST and batch.attempts <= self._options.retries:
            logger.warning(
                "partition %s-%d: the broker lost the producer's sequence (%s); going on with a new producer id",
                queue.topic,
                queue.partition,
                error,
            )
            self._lose_sequence(queue)
            batch.sequence = NO_SEQUENCE
            self._retry(queue, batch)
            return
        self._fail(queue, batch, error)

    def _too_large_to_send(self, queue: PartitionQueue, batch: Batch, error: RecordTooLargeError) -> None:
        """The connection takes no request with this batch. It sent nothing, so no sequence is lost, either."""
        if batch.count > 1:
            self._halve(queue, batch)
            return
        if batch.sequence != NO_SEQUENCE and queue.next_sequence == (batch.sequence + 1) & b.SEQUENCE_MAX:
            queue.next_sequence, batch.sequence = batch.sequence, NO_SEQUENCE
        self._fail(queue, batch, error)

    def _halve(self, queue: PartitionQueue, batch: Batch) -> None:
        """Put two batches in the place of one that is too large. Those behind it are one place further back then."""
        split_encoded(batch, self._codec)
        if batch.sequence != NO_SEQUENCE:
            for each in (*queue.in_flight, *queue.batches):
                if each.sequence != NO_SEQUENCE and each.place > batch.place:
                    each.place += 1
            queue.numbered += 1
        first, second = self._accumulator.split(batch)
        first.place, second.place = batch.place, batch.place + 1
        self._accumulator.put_back(queue, [first, second])

    def _may_retry(self, queue: PartitionQueue, batch: Batch, error: BaseException, code: int) -> bool:
        if batch.attempts > self._options.retries:
            return False
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.sequence != NO_SEQUENCE:
            return batch.producer_id == queue.producer_id and _follows_another(queue, batch)
        return bool(getattr(error, "retriable", False))

    def _retry(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.failures += 1
        queue.retry_at_s = self._scheduler.now_s + self._network.backoff_s(
            min(queue.failures, batch.attempts) - 1
        )
        self._accumulator.put_back(queue, [batch])

    def _fail(self, queue: PartitionQueue, batch: Batch, error: BaseException) -> None:
        if self._options.idempotent and batch.sequence != NO_SEQUENCE:
            self._lose_sequence(queue)
        if self._options.transactional_id is not None:
            self.transactions.judge(queue, batch, error, retriable=False)
        self._accumulator.finish(batch, -1, -1, error)
        self._progress.set()

    def _lose_sequence(self, queue: PartitionQueue) -> None:
        """The broker expects a sequence that will not come: number this partition again, under a new id."""
        if self._options.transactional_id is not None:
            return
        self._id_is_lost = True
        for batch in queue.batches:
            batch.sequence = NO_SEQUENCE


def _is_too_far_ahead(queue: PartitionQueue, batch: Batch) -> bool:
    """Whether the broker could forget the oldest batch in flight if it took this one."""
    place = queue.numbered if batch.sequence == NO_SEQUENCE else batch.place
    return place - min(each.place for each in queue.in_flight) >= _REMEMBERED_BATCHES


def _follows_another(queue: PartitionQueue, batch: Batch) -> bool:
    """Whether a batch before this one is still to be written. If there is none, the sequence has a gap for good."""
    return any(
        each.sequence != NO_SEQUENCE and each.producer_id == batch.producer_id and each.place < batch.place
        for each in (*queue.in_flight, *queue.batches)
    )


def _settled(batch: Batch) -> bool:
    return all(_settled(part) for _, part in batch.parts) if batch.parts else batch.done


def _framed(batch: Batch, codec: Codec, flags: int) -> tuple[b.Buffer, ...]:
    """The batch in pieces: its records are not copied behind its header."""
    if batch.room is not None:
        return (framed_in_place(batch, flags),)
    assert batch.payload is not None
    times_ms = batch.records.times_ms
    header = batch_header(
        batch.payload,
        count=batch.count,
        attributes=int(codec) | flags,
        first_ms=times_ms[0],
        max_ms=max(times_ms),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence,
    )
    return header, batch.payload
