"""A permit that its coordinator did not live to see taken opens no transaction after that transaction's end.

With several coordinator processes a marker for `__consumer_offsets` takes the ring of the process to which the offsets
belong; the permit took the ring of the transaction's coordinator. If that one dies while the worker stalls, its
successor may end the transaction before the worker has read the permit, or has heard of the death.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.control_channel import Assign, AssignedPartition, Envelope
from appliance.channels.request_channel import (
    ERROR,
    REQUEST_ID,
    RequestFlag,
    marker_request,
    permit_request,
    produce_request,
)
from appliance.channels.roles import Role, RoleKind
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.record import Record, encode_batch
from tests.ioproc.worker_on_rings import WORKER, WorkerOnRings

OF_TRANSACTION, OF_OFFSETS = Role(RoleKind.COORDINATOR, 0), Role(RoleKind.COORDINATOR, 1)
PRODUCER, EPOCH, ROW, INCARNATION = 7, 3, 0, 1


class Scene(WorkerOnRings):
    """A worker that leads one partition, and two coordinators that ask it."""

    def __init__(self, data_dir: Path) -> None:
        # Where the rings are looked at in this order, the marker is served before the permit.
        super().__init__(data_dir, (OF_OFFSETS, OF_TRANSACTION), {"coordinator.processes": "2"})
        for asker in self.askers.values():
            asker.row.start(1, 1, now_ms=0, now_ns=0)
        assigned = AssignedPartition("t", UUID(int=7), 0, ROW, INCARNATION, 0, 0, (0,), (0,), {})
        self.worker.host.obey([Envelope(1, Assign(1, "c", full=True, partitions=(assigned,)))])

    def ask(self, asker: Role, request: tuple[int, ...]) -> None:
        ring = self.askers[asker].outbound[WORKER]
        assert ring.put(*request)
        ring.publish()

    def permit(self) -> None:
        request = permit_request(
            request_id=1, row=ROW, incarnation=INCARNATION, producer_id=PRODUCER, producer_epoch=EPOCH
        )
        self.ask(OF_TRANSACTION, request)

    def marker(self) -> None:
        request = marker_request(
            request_id=2,
            row=ROW,
            incarnation=INCARNATION,
            producer_id=PRODUCER,
            producer_epoch=EPOCH,
            coordinator_epoch=0,
            commit=True,
            transaction_version=0,
            timeout_ms=1000,
        )
        self.ask(OF_OFFSETS, request)

    def late_offsets(self) -> int:
        """The error of a late commit of offsets in the transaction that has ended."""
        asker = self.askers[OF_OFFSETS]
        assert asker.pool is not None
        batch = encode_batch(
            [Record(key=b"key", value=b"value")],
            attributes=TRANSACTIONAL,
            producer_id=PRODUCER,
            producer_epoch=EPOCH,
        )
        asker.pool.view[: len(batch)] = batch
        flags = int(RequestFlag.COORDINATOR_ORIGIN)
        self.ask(OF_OFFSETS, produce_request(3, 0, ROW, INCARNATION, flags, -1, 0, len(batch), 9, 1000, 0))
        return self.answers(OF_OFFSETS)[3]

    def answers(self, asker: Role) -> dict[int, int]:
        """Request id → error."""
        self.worker.rings.serve()
        return {each[REQUEST_ID]: each[ERROR] for each in self.askers[asker].inbound[WORKER].drain(16)}

    def successor_starts(self) -> None:
        """The supervisor has started the next life; this worker has not looked at its messages yet."""
        self.askers[OF_TRANSACTION].row.start(2, 2, now_ms=0, now_ns=0)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def test_a_permit_of_a_dead_coordinator_is_refused_once_its_successor_lives(scene: Scene) -> None:
    scene.permit()
    scene.successor_starts()
    scene.marker()
    assert scene.answers(OF_OFFSETS) == {2: 0}
    assert scene.answers(OF_TRANSACTION) == {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert scene.late_offsets() == ErrorCode.INVALID_TXN_STATE
    assert scene.late_offsets() == ErrorCode.INVALID_TXN_STATE


def test_a_permit_of_a_coordinator_that_lives_is_taken(scene: Scene) -> None:
    scene.permit()
    assert scene.answers(OF_TRANSACTION) == {1: 0}
    assert scene.late_offsets() == 0


def test_a_permit_of_a_dead_coordinator_without_a_successor_does_no_harm(scene: Scene) -> None:
    """Nobody has ended its transaction: the successor will, after it has started."""
    scene.permit()
    assert scene.answers(OF_TRANSACTION) == {1: 0}
    scene.successor_starts()
    scene.marker()
    assert scene.answers(OF_OFFSETS) == {2: 0}
    assert scene.late_offsets() == ErrorCode.INVALID_TXN_STATE
