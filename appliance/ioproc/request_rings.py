"""The rings of an I/O worker: drain requests, append or locate, answer, notify the purgatory and followers.

    rings in ─→ burst ─→ handlers/<operation>.py ─→ answer ─→ ring out, one publish per burst
                  └─→ costly ones wait for their connection's turn; held ones for followers or a disk

A worker calls `serve` in every round, and between two logs that it opens.
"""

from __future__ import annotations

from typing import Any, Final

from appliance.channels.request_channel import (
    APPENDED_BYTES,
    ARRIVED_NS,
    CONNECTION,
    ERROR,
    FLAGS,
    INCARNATION,
    LENGTH_BYTES,
    OFFSET,
    OP,
    POSITION,
    ROW,
    Op,
    RequestFlag,
    refusal,
)
from appliance.channels.roles import PURGATORY, Role, RoleKind
from appliance.errors import CorruptFile
from appliance.ioproc.answer_rings import AnswerRings
from appliance.ioproc.costly_requests import COSTLY_BYTES, CostlyRequests
from appliance.ioproc.followed import Followed
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.handlers.alter_log_dir import alter_log_dir
from appliance.ioproc.handlers.delete_records import delete_records
from appliance.ioproc.handlers.describe_log_dir import describe_log_dir
from appliance.ioproc.handlers.describe_producer import describe_producer
from appliance.ioproc.handlers.epoch_end import epoch_end
from appliance.ioproc.handlers.fetch import fetch
from appliance.ioproc.handlers.list_offsets import list_offsets
from appliance.ioproc.handlers.log_damaged import log_damaged
from appliance.ioproc.handlers.permit_transaction import permit_transaction
from appliance.ioproc.handlers.produce import Answer, produce
from appliance.ioproc.handlers.write_marker import write_marker
from appliance.ioproc.partition import Partition
from appliance.ioproc.pokes import Pokes
from appliance.ioproc.stage_times import StageTimes
from appliance.ioproc.storage_failures import ServedFailures
from appliance.ipc.process_table import BYTES_IN, GENERATION, REQUESTS, ProcessRow
from appliance.ipc.ring import RingReader, RingWriter
from appliance.partition_host.checkpoints import Checkpoints
from appliance.partition_host.listener import PartitionListener
from appliance.partition_host.log_moves import NO_FUTURE, LogMoves
from appliance.process.agent import AgentProcess
from appliance.protocol.errors import ErrorCode

# Answers are published after this many requests or payload bytes, so that one network process's burst of large
# batches does not keep the first of its answers waiting for the last.
BURST_REQUESTS: Final = 32
BURST_BYTES: Final = 1 << 20

_PRODUCE: Final = int(Op.PRODUCE)
_FETCH: Final = int(Op.FETCH)
_LIST_OFFSETS: Final = int(Op.LIST_OFFSETS)
_DELETE_RECORDS: Final = int(Op.DELETE_RECORDS)
_ALTER_LOG_DIR: Final = int(Op.ALTER_LOG_DIR)
_DESCRIBE_LOG_DIR: Final = int(Op.DESCRIBE_LOG_DIR)
_EPOCH_END: Final = int(Op.EPOCH_END)
_DESCRIBE_PRODUCER: Final = int(Op.DESCRIBE_PRODUCER)
_CONNECTION_CLOSED: Final = int(Op.CONNECTION_CLOSED)
_WRITE_MARKER: Final = int(Op.WRITE_MARKER)
_PERMIT_TRANSACTION: Final = int(Op.PERMIT_TRANSACTION)
_LOG_DAMAGED: Final = int(Op.LOG_DAMAGED)
_LONE: Final = int(RequestFlag.LONE)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_INVALID_REQUEST: Final = int(ErrorCode.INVALID_REQUEST)
_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)
_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)


class RequestRings:
    """Those of one worker. Nothing is led before `open`.

    `was_lone`: the round before had one request, of a client that waits for its answer before it sends another.

    Args:
        listener: Learns of moved log starts and of damaged logs.
    """

    def __init__(
        self,
        process: AgentProcess,
        *,
        answers: AnswerRings,
        pokes: Pokes,
        commits: GroupCommit,
        followed: Followed,
        checkpoints: Checkpoints,
        failures: ServedFailures,
        listener: PartitionListener[Partition],
    ) -> None:
        attachment = process.attachment
        self._attachment = attachment
        self._clock = process.clock
        self._process = process
        self._answers = answers
        self._pokes = pokes
        self._commits = commits
        self._followed = followed
        self._checkpoints = checkpoints
        self._failures = failures
        self._listener = listener
        self._costly = CostlyRequests()
        self._by_row: list[Any] = []
        self._rows: dict[Role, ProcessRow] = {}
        self._moves: LogMoves[Partition] | None = None
        self._has_followers = process.settings.slots > 1
        self._depth = 0
        self.was_lone = False
        self._stages: StageTimes | None = None

    def open(self, by_row: list[Partition | None], moves: LogMoves[Partition]) -> None:
        """Serve these partitions, at any time those that are in `by_row`, from now on."""
        self._by_row = by_row
        self._moves = moves

    def set_stages(self, stages: StageTimes) -> None:
        """Time requests for the metrics process."""
        self._stages = self._answers.stages = stages

    @property
    def sleep_max_ms(self) -> int | None:
        """How long the worker may sleep: not at all while costly operations wait, a millisecond while a full ring keeps
        something back, else until it is woken (None).
        """
        if self._costly:
            return 0
        return 1 if self._answers.kept_back or self._pokes.owed or self._followed.owed else None

    def readers(self) -> list[RingReader]:
        """Return the rings on which a lone client's next request, or a follower's answer, may arrive."""
        return list(self._attachment.inbound.values()) + self._followed.readers

    def peer_down(self, peer: Role) -> None:
        """Drop what a process that has died has asked for, before the attachment lets go of its rings."""
        self._answers.peer_down(peer)
        self._costly.drop_peer(peer)
        if self._stages is not None:
            self._stages.drop_peer(peer)
        self._commits.drop_requester(peer)
        self._followed.peer_down(peer)

    def serve(self) -> bool:
        """Serve what waits on the rings, a burst from each. Return whether anything did."""
        answers = self._answers
        if answers.kept_back:
            answers.send_kept_back()
        attachment = self._attachment
        depth = 0
        lone = False
        for peer, reader in attachment.inbound.items():
            messages = reader.drain(BURST_REQUESTS)
            if messages:
                depth += len(messages) + reader.depth()
                lone = bool(messages[0][1] & _LONE)
                self._serve(peer, messages)
        if self._costly:
            self._serve_costly()
            depth = depth or 1
        self.was_lone = lone and depth == 1
        if self._has_followers:
            # Their answers go out in this round, too; what they are told is what it has appended.
            if self._followed.turn():
                answers.publish_late()
                depth = depth or 1
            self._followed.tell()
        if depth != self._depth:
            self._depth = depth
            attachment.row.set_queue_depth(depth)
        if self._commits.is_busy:
            self._commits.turn()
            answers.publish_late()
            # Whoever spins holds the interpreter's lock, which the flush wants back.
            self.was_lone = False
        self._pokes.tell(attachment.outbound.get(PURGATORY), attachment.bells.get(PURGATORY))
        return depth > 0

    def _serve(  # noqa: PLR0912 (the hot path: a call costs more than a branch)
        self, peer: Role, messages: list[tuple[Any, ...]]
    ) -> None:
        writer = self._attachment.outbound.get(peer)
        pool = self._attachment.pools.get(peer)
        if writer is None or pool is None:
            return  # the requester died; drop its request
        view, by_row, cells = pool.view, self._by_row, self._attachment.row.cells
        table, answers = self._attachment.partitions, self._answers
        burst_bytes = 0
        cells[REQUESTS] += len(messages)
        for message in messages:
            op, row = message[OP], message[ROW]
            if op == _CONNECTION_CLOSED:
                self._connection_closed(peer, message[CONNECTION])
                continue
            partition = by_row[row] if row < len(by_row) else None
            if partition is None or partition.incarnation != message[INCARNATION]:
                is_offline = row < len(by_row) and table.is_offline(row, message[INCARNATION])
                answer = refusal(message, _STORAGE_ERROR if is_offline else _NOT_LEADER)
            elif op == _PRODUCE:
                produced = self._produce(partition, peer, message, view, COSTLY_BYTES)
                if produced is None:
                    continue
                answer = produced
                burst_bytes += message[LENGTH_BYTES]
            elif op == _FETCH:
                if message[ARRIVED_NS] and self._stages is not None:
                    self._stages.begin()
                    answer = fetch(partition, message)
                    self._stages.located(message[ARRIVED_NS])
                else:
                    answer = fetch(partition, message)
            elif op == _LIST_OFFSETS:
                self._costly.add(peer, message)  # a look-up by timestamp decompresses a batch
                continue
            else:
                self._serve_seldom(peer, writer, partition, message)
                continue
            if answer[ERROR]:
                self._note_error(partition, message, answer[ERROR])
            if not writer.put(*answer):
                answers.keep_back(peer, answer)
            if burst_bytes >= BURST_BYTES:
                cells[BYTES_IN] += burst_bytes
                burst_bytes = 0
                answers.publish(peer, writer)
        cells[BYTES_IN] += burst_bytes
        answers.publish(peer, writer)

    def _produce(
        self,
        partition: Partition,
        peer: Role,
        message: tuple[Any, ...],
        view: memoryview,
        cheap_bytes_max: int,
    ) -> Answer | None:
        """Append and publish; None: the answer comes later, from followers, from a disk or from a costly check."""
        costly = self._costly
        if cheap_bytes_max and costly and costly.has(peer, message):
            costly.add(peer, message)
            return None
        position, length_bytes = message[POSITION], message[LENGTH_BYTES]
        stages = self._stages if message[ARRIVED_NS] else None
        if stages is not None:
            stages.begin()
        answer = produce(partition, message, view[position : position + length_bytes], cheap_bytes_max)
        if answer is None:
            costly.add(peer, message)
            return None
        if stages is not None:
            stages.appended(message[ARRIVED_NS])
        if not self._appended(partition, peer, message, answer):
            return answer
        if stages is not None:
            stages.held(peer, answer)
        return None

    def _appended(self, partition: Partition, peer: Role, message: tuple[Any, ...], answer: Answer) -> bool:
        """Publish what an append's answer tells of; return whether the answer waits for followers or for a disk."""
        if answer[ERROR]:
            return False
        if partition.is_held:
            self._checkpoints.note_dirty()
            if self._hold(partition, peer, message, answer):
                return True
        if not answer[FLAGS] and partition.replication is None:
            partition.publish()
            self._pokes.moved(partition.row, answer[APPENDED_BYTES])
            self._checkpoints.note_dirty()
        return False

    def _serve_costly(self) -> None:
        """Serve one costly operation: the others wait until the rings were looked at again."""
        peer, message = self._costly.next()
        writer, pool = self._attachment.outbound.get(peer), self._attachment.pools.get(peer)
        if writer is None or pool is None:
            return
        row = message[ROW]
        partition: Partition | None = self._by_row[row] if row < len(self._by_row) else None
        if partition is None or partition.incarnation != message[INCARNATION]:
            is_offline = self._attachment.partitions.is_offline(row, message[INCARNATION])
            answer = refusal(message, _STORAGE_ERROR if is_offline else _NOT_LEADER)
        elif message[OP] == _PRODUCE:
            self._attachment.row.cells[BYTES_IN] += message[LENGTH_BYTES]
            produced = self._produce(partition, peer, message, pool.view, 0)
            if produced is None:
                return
            answer = produced
        else:
            answer = list_offsets(partition, message)
        if answer[ERROR] and partition is not None:
            self._note_error(partition, message, answer[ERROR])
        self._answers.reply(peer, answer)
        self._answers.publish_late()
        self._process.beat()

    def _connection_closed(self, peer: Role, connection: int) -> None:
        """Answer for a client that has left: the network process keeps its payloads until then."""
        for message in self._costly.drop_connection(peer, connection):
            self._answers.reply(peer, refusal(message, _TIMED_OUT))

    def _note_error(self, partition: Partition | None, message: tuple[Any, ...], error: int) -> None:
        if message[OP] == _FETCH and partition is not None and isinstance(partition.fault, CorruptFile):
            self._listener.log_damaged(partition, message[OFFSET])
        self._failures.note_error(partition, error)

    def _hold(self, partition: Partition, peer: Role, message: tuple[Any, ...], answer: Answer) -> bool:
        """Whether an answer waits, for followers or for a disk."""
        if partition.replication is not None:
            return self._followed.hold(partition, peer, message, answer)
        return self._commits.hold(partition, peer, answer)

    def _has_successor(self, peer: Role) -> bool:
        """Whether what `peer` put on its ring is of a life before the one that is in the process table."""
        attachment, row = self._attachment, self._rows.get(peer)
        if row is None:
            number = attachment.wiring.process_row(peer)
            row = self._rows[peer] = attachment.process_table.row(number)
        return bool(row.cells[GENERATION] != attachment.generations.get(peer))

    def _serve_seldom(
        self, peer: Role, writer: RingWriter, partition: Partition, message: tuple[Any, ...]
    ) -> None:
        if message[OP] == _PERMIT_TRANSACTION and self._has_successor(peer):
            # Its successor may have ended that transaction already: a marker for group offsets may come on the ring of
            # another coordinator (decision 0098).
            answer = refusal(message, _NOT_LEADER)
        else:
            answer = self._seldom_answer(partition, message)
        if message[OP] == _WRITE_MARKER and self._appended(partition, peer, message, answer):
            return
        if (
            message[OP] == _DELETE_RECORDS
            and not answer[ERROR]
            and self._followed.hold_deletion(partition, peer, message, answer)
        ):
            return
        if answer[ERROR]:
            self._failures.note_error(partition, answer[ERROR])
        if not writer.put(*answer):
            self._answers.keep_back(peer, answer)

    def _seldom_answer(self, partition: Partition, message: tuple[Any, ...]) -> Answer:
        op = message[OP]
        if op == _DELETE_RECORDS:
            answer = delete_records(partition, message)
            if not answer[ERROR]:
                self._listener.log_start_moved()
            return answer
        if op == _EPOCH_END:
            return epoch_end(partition, message)
        if op == _DESCRIBE_LOG_DIR:
            shown = NO_FUTURE if self._moves is None else self._moves.shown(partition)
            return describe_log_dir(partition, message, shown)
        if op == _WRITE_MARKER:
            return write_marker(partition, message, now_ms=self._clock.now_ms())
        if op == _PERMIT_TRANSACTION:
            return permit_transaction(partition, message)
        if op == _LOG_DAMAGED:
            return log_damaged(partition, message, self._listener)
        if op == _DESCRIBE_PRODUCER:
            return describe_producer(partition, message)
        if op == _ALTER_LOG_DIR and self._moves is not None:
            return alter_log_dir(partition, message, self._moves)
        return refusal(message, _INVALID_REQUEST)

    def statistics(self) -> dict[str, int]:
        """Return the answers kept back, the costly requests that wait, and the network processes."""
        return {
            **self._answers.statistics(),
            **self._costly.statistics(),
            "peers": sum(role.kind is RoleKind.NETPROC for role in self._attachment.inbound),
        }
