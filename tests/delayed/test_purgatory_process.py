"""The purgatory as a process of its own, over real rings: the test plays its network processes and its worker."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.child import Child
from appliance.channels.partition_table import ACTIVE_SEGMENT, HIGH_WATERMARK, WATCHERS
from appliance.channels.purgatory_channel import COMPLETED_ID, REASON, CompletionReason, PurgatoryOp
from appliance.channels.roles import PURGATORY, Role, RoleKind
from appliance.channels.supervision import (
    Heartbeat,
    Message,
    PeerDown,
    PeerUp,
    Ready,
    Stop,
    SupervisionSocket,
    socket_pair,
)
from appliance.channels.wiring import Attachment, Wiring
from appliance.cluster import ClusterImage, PartitionImage, TopicImage
from appliance.config import Settings
from appliance.control.purgatory.main import run
from appliance.ioproc.pokes import Pokes
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.fence import full_fence
from appliance.ipc.process_table import LOOPS
from appliance.ipc.shared_memory import remove_directory
from tests.support.private_directory import new_private_directory
from tests.support.published import publisher_in
from tests.support.ready import is_readable

IOPROC = Role(RoleKind.IOPROC, 0, 0)
NETPROCS = (Role(RoleKind.NETPROC, 0), Role(RoleKind.NETPROC, 1))
PEERS = (IOPROC, *NETPROCS)
FAR_MS = 600_000
PATIENCE_MS = 30_000
# Times for what must be heard before it is due: the next one where somebody lost his processor for so long.
SOON_MS = (30, 300, 3_000)


class House:
    """An instance of one purgatory and its peers; the peers are attachments of the test's own."""

    def __init__(self, data_dir: Path, *, ring_slots: int) -> None:
        settings = Settings(data_dir=data_dir)
        settings = replace(settings, network=replace(settings.network, processes=2, ring_slots=ring_slots))
        self.memory = new_private_directory()
        roles = [PURGATORY, *PEERS]
        bells = {role: Doorbell.create_eventfd() for role in roles}
        self.wiring = Wiring(settings, "appliance-test", self.memory, bells)
        self.wiring.create_standing_regions()
        self.generations = dict.fromkeys(PEERS, 1)
        for role in PEERS:
            self.wiring.create_for(role, 1, {})
        self.purgatory_generation = 0
        self.pid = 0
        self.supervision = SupervisionSocket(socket.socket())
        self.start()
        self.peers = {role: self.attach(role) for role in PEERS}
        self.table = self.peers[IOPROC].partitions
        self.pokes = Pokes(self.table)
        self.request_id = 0

    def attach(self, role: Role) -> Attachment:
        return Attachment(self.wiring, role, self.generations[role], {PURGATORY: self.purgatory_generation})

    def start(self) -> None:
        """Forks the next generation of the purgatory and waits until it serves."""
        self.purgatory_generation += 1
        self.wiring.create_for(PURGATORY, self.purgatory_generation, self.generations)
        here, there = socket_pair()
        generation, peers = self.purgatory_generation, dict(self.generations)
        self.pid = os.fork()
        if self.pid == 0:
            here.close()
            code = 70
            try:
                signal.alarm(240)
                child = Child(PURGATORY, generation, peers, self.wiring, SupervisionSocket(there))
                code = run(child)
            finally:
                os._exit(code)
        there.close()
        self.supervision = SupervisionSocket(here)
        assert self.hear() == [Ready()]

    def hear(self) -> list[Message]:
        assert is_readable(self.supervision.fileno(), within_s=PATIENCE_MS / 1000), (
            "the purgatory says nothing"
        )
        return self.supervision.receive() or []

    def in_step(self) -> None:
        """Returns when the purgatory has heard everything that was said before.

        It answers a heartbeat before it drains its rings in that round; so the second answer comes after.
        """
        for number in (1, 2):
            self.supervision.send(Heartbeat(number))
            assert self.hear() == [Heartbeat(number)]

    def wait_for(
        self,
        watches: dict[int, int],
        *,
        within_ms: int = FAR_MS,
        needed_bytes: int = 1,
        netproc: int = 0,
        within: int = 0,
    ) -> int:
        """Registers and arms a fetch; its request id."""
        self.request_id += 1
        peer = self.peers[NETPROCS[netproc]]
        writer = peer.outbound[PURGATORY]
        for row, offset in watches.items():
            self.put(writer.put, PurgatoryOp.WATCH, within, 0, self.request_id, row, 0, offset, 0, 0, 0, 0, 0)
        due_ns = time.monotonic_ns() + within_ms * 1_000_000
        arm = (PurgatoryOp.ARM, 0, 0, self.request_id, 0, len(watches), 0, due_ns, needed_bytes, 0, 0, 0)
        self.put(writer.put, *arm)
        writer.publish()
        peer.bells[PURGATORY].ring()
        return self.request_id

    def put(self, put: Callable[..., bool], *message: int) -> None:
        """Waits for room in a full ring."""
        while not put(*message):
            for peer in self.peers.values():
                peer.outbound[PURGATORY].publish()
                peer.bells[PURGATORY].ring()
            os.sched_yield()

    def cancel(self, request_id: int) -> None:
        peer = self.peers[NETPROCS[0]]
        self.put(peer.outbound[PURGATORY].put, PurgatoryOp.CANCEL, 0, 0, request_id, *[0] * 8)
        peer.outbound[PURGATORY].publish()
        peer.bells[PURGATORY].ring()

    def append(self, row: int, high_watermark: int, appended_bytes: int = 1) -> None:
        """What a worker does: publish the high watermark, then poke whom it concerns."""
        self.table.cells[self.table.at(row) + HIGH_WATERMARK] = high_watermark
        self.pokes.moved(row, appended_bytes)
        worker = self.peers[IOPROC]
        while self.pokes.owed:
            self.pokes.tell(worker.outbound[PURGATORY], worker.bells[PURGATORY])

    def completions(
        self, count: int, *, netproc: int = 0, patience_ms: int = PATIENCE_MS
    ) -> list[tuple[int, CompletionReason]]:
        """The next `count` completions of a network process, fewer when they do not come in time."""
        peer = self.peers[NETPROCS[netproc]]
        reader, found = peer.inbound[PURGATORY], list[tuple[int, CompletionReason]]()
        deadline = time.monotonic() + patience_ms / 1000
        while len(found) < count and time.monotonic() < deadline:
            peer.doorbell.announce_sleep()
            if reader.is_empty():
                is_readable(peer.doorbell.eventfd, within_s=max(0.0, deadline - time.monotonic()))
            peer.doorbell.awake()
            peer.doorbell.drain()
            found += [
                (message[COMPLETED_ID], CompletionReason(message[REASON])) for message in reader.drain()
            ]
        return found

    def watchers(self, row: int) -> int:
        return int(self.table.cells[self.table.at(row) + WATCHERS])

    def kill(self) -> int:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        return self.join()

    def join(self) -> int:
        if not self.pid:
            return 0
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        self.kill()
        self.supervision.close()
        for peer in self.peers.values():
            peer.peer_down(PURGATORY)
        for bell in self.wiring.doorbells.values():
            os.close(bell)
        remove_directory(self.memory)


@pytest.fixture
def ring_slots() -> int:
    return 4096


@pytest.fixture
def house(tmp_path: Path, ring_slots: int) -> Iterator[House]:
    made = House(tmp_path, ring_slots=ring_slots)
    yield made
    made.close()


def test_an_append_completes_who_waits_for_it(house: House) -> None:
    first = house.wait_for({3: 10})
    second = house.wait_for({3: 20, 4: 5})
    house.in_step()
    assert (house.watchers(3), house.watchers(4)) == (2, 1)
    house.append(3, 11)
    assert house.completions(1) == [(first, CompletionReason.SATISFIED)]
    house.append(4, 6)
    assert house.completions(1) == [(second, CompletionReason.SATISFIED)]
    house.in_step()
    assert house.watchers(3) == house.watchers(4) == 0


def test_time_completes_in_order_and_never_early(house: House) -> None:
    for soon_ms in SOON_MS:
        start_ns = time.monotonic_ns()
        late = house.wait_for({1: 0}, within_ms=2 * soon_ms)
        early = house.wait_for({1: 0}, within_ms=soon_ms)
        house.in_step()
        if time.monotonic_ns() - start_ns < soon_ms * 1_000_000:
            break  # both were heard before either was due
        house.completions(2)
    found = house.completions(1)
    assert time.monotonic_ns() - start_ns >= soon_ms * 1_000_000
    found += house.completions(2 - len(found))
    assert time.monotonic_ns() - start_ns >= 2 * soon_ms * 1_000_000
    assert found == [(early, CompletionReason.EXPIRED), (late, CompletionReason.EXPIRED)]
    assert house.completions(1, patience_ms=20) == []


def test_fewer_bytes_than_asked_for_complete_nothing(house: House) -> None:
    request = house.wait_for({1: 0, 2: 0}, needed_bytes=1_000)
    house.in_step()
    house.append(1, 1, appended_bytes=400)
    house.append(2, 1, appended_bytes=400)
    house.in_step()
    assert house.completions(1, patience_ms=0) == []
    house.append(1, 2, appended_bytes=200)
    assert house.completions(1) == [(request, CompletionReason.SATISFIED)]


def test_an_append_before_the_registration_was_heard_is_not_missed(house: House) -> None:
    """Nobody poked, because nobody watched yet: only the second look at the high watermark can tell."""
    house.append(5, 101)
    request = house.wait_for({5: 100})
    assert house.completions(1) == [(request, CompletionReason.SATISFIED)]


def test_who_cancels_hears_nothing_more(house: House) -> None:
    for soon_ms in SOON_MS:
        start_ns = time.monotonic_ns()
        request = house.wait_for({6: 0}, within_ms=soon_ms)
        house.cancel(request)
        house.in_step()
        if time.monotonic_ns() - start_ns < soon_ms * 1_000_000:
            break  # it was cancelled before it was due
        house.completions(1, patience_ms=0)
    assert house.watchers(6) == 0
    house.append(6, 1)
    assert house.completions(1, patience_ms=2 * soon_ms) == []


def test_each_network_process_gets_its_own(house: House) -> None:
    ours, theirs = house.wait_for({7: 0}, netproc=0), house.wait_for({7: 0}, netproc=1)
    house.in_step()
    house.append(7, 1)
    assert house.completions(1, netproc=0) == [(ours, CompletionReason.SATISFIED)]
    assert house.completions(1, netproc=1) == [(theirs, CompletionReason.SATISFIED)]


def test_what_a_dead_network_process_waited_for_is_dropped(house: House) -> None:
    for row in range(10, 20):
        house.wait_for({row: 0}, netproc=1)
    survivor = house.wait_for({10: 0}, netproc=0)
    house.in_step()
    house.supervision.send(PeerDown(RoleKind.NETPROC, 1, -1, 1))
    house.in_step()
    assert [house.watchers(row) for row in range(10, 20)] == [1] + [0] * 9
    house.append(10, 1)
    assert house.completions(1) == [(survivor, CompletionReason.SATISFIED)]


def test_a_restarted_network_process_may_use_the_same_request_ids(house: House) -> None:
    netproc = NETPROCS[1]
    house.wait_for({10: 0}, netproc=1)
    house.in_step()
    house.supervision.send(PeerDown(RoleKind.NETPROC, 1, -1, 1))
    house.wiring.remove_for(netproc, 1)
    house.generations[netproc] = 2
    house.wiring.create_for(netproc, 2, {PURGATORY: house.purgatory_generation})
    house.peers[netproc].peer_down(PURGATORY)
    house.peers[netproc] = house.attach(netproc)
    house.supervision.send(PeerUp(RoleKind.NETPROC, 1, -1, 2))
    house.request_id -= 1
    request = house.wait_for({10: 0}, netproc=1)
    house.in_step()
    assert house.watchers(10) == 1
    house.append(10, 1)
    assert house.completions(1, netproc=1) == [(request, CompletionReason.SATISFIED)]
    assert house.completions(1, netproc=1, patience_ms=300) == []


def test_a_recovered_worker_completes_without_a_poke(house: House) -> None:
    """Its high watermark came back while no ring led here."""
    request = house.wait_for({8: 50})
    house.in_step()
    house.supervision.send(PeerDown(IOPROC.kind, IOPROC.index, IOPROC.slot, 1))
    house.in_step()
    house.table.cells[house.table.at(8) + HIGH_WATERMARK] = 51
    house.wiring.remove_for(IOPROC, 1)
    house.wiring.create_for(IOPROC, 2, {PURGATORY: house.purgatory_generation})
    house.supervision.send(PeerUp(IOPROC.kind, IOPROC.index, IOPROC.slot, 2))
    assert house.completions(1) == [(request, CompletionReason.SATISFIED)]


@pytest.mark.parametrize("ring_slots", [64])
def test_a_full_completion_ring_delays_and_loses_nothing(house: House) -> None:
    """300 completions through 64 slots whose reader stands still for a while."""
    waiting = [house.wait_for({9: 0}) for _ in range(300)]
    house.in_step()
    assert house.watchers(9) == 300
    house.append(9, 1)
    house.in_step()
    found = house.completions(300)
    assert sorted(request for request, _ in found) == waiting
    assert house.completions(1, patience_ms=20) == []


def test_a_half_made_registration_is_answered_not_kept(house: House) -> None:
    peer = house.peers[NETPROCS[0]]
    writer = peer.outbound[PURGATORY]
    far_ns = time.monotonic_ns() + 10**12
    writer.put(PurgatoryOp.ARM, 0, 0, 900, 0, 2, 0, far_ns, 1, 0, 0, 0)
    writer.put(PurgatoryOp.WATCH, 0, 0, 901, 2**31, 0, 0, 0, 0, 0, 0, 0)
    writer.put(PurgatoryOp.ARM, 0, 0, 901, 0, 1, 0, far_ns, 1, 0, 0, 0)
    writer.put(77, 0, 0, 902, 0, 0, 0, 0, 0, 0, 0, 0)
    writer.publish()
    peer.bells[PURGATORY].ring()
    assert sorted(request for request, _ in house.completions(2)) == [900, 901]
    house.in_step()
    assert peer.process_table.row(house.wiring.process_row(PURGATORY)).snapshot().errors == 4


def test_the_next_life_clears_words_that_the_last_one_left(house: House) -> None:
    partitions = tuple(PartitionImage(n, 10 + n, 1, 0, 0, (0,), (0,)) for n in range(3))
    topic = TopicImage("t", UUID(int=7), partitions)
    image = ClusterImage(1, "c", 0, 0, (), {"t": topic})
    publisher_in(house.memory).publish(image)
    house.wait_for({10: 0, 12: 0, 40: 0})
    house.in_step()
    assert house.kill() == -signal.SIGKILL
    assert [house.watchers(row) for row in (10, 12, 40)] == [1, 1, 1]
    for role, peer in house.peers.items():
        peer.peer_down(PURGATORY)
        house.wiring.remove_for(PURGATORY, house.purgatory_generation)
        assert role in house.generations
    house.start()
    for peer in house.peers.values():
        peer.peer_up(PURGATORY, house.purgatory_generation)
    assert [house.watchers(row) for row in (10, 12)] == [0, 0]
    house.append(40, 1)
    house.in_step()
    assert house.watchers(40) == 0, "a needless poke clears what the metadata does not name"


def test_no_completion_is_lost_or_doubled_under_traffic(house: House) -> None:
    """A worker appends as fast as it can while fetches register behind it: each is answered once, in no time."""
    rows, fetches = range(20, 24), 15_000
    worker = house.peers[IOPROC]
    pid = os.fork()
    if pid == 0:
        signal.alarm(240)
        dice, high_watermarks = random.Random(5), dict.fromkeys(rows, 0)
        while os.getppid() != 1:
            row = dice.choice(rows)
            high_watermarks[row] += 1
            house.append(row, high_watermarks[row])
        os._exit(0)
    try:
        dice, peer = random.Random(6), house.peers[NETPROCS[0]]
        for number in range(fetches):
            chosen = dice.sample(rows, dice.randrange(1, 4))
            watches = {row: int(house.table.cells[house.table.at(row) + HIGH_WATERMARK]) for row in chosen}
            request = house.wait_for(watches)
            assert house.completions(1) == [(request, CompletionReason.SATISFIED)], (
                f"fetch {number} was forgotten"
            )
        assert peer.inbound[PURGATORY].is_empty()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert worker.row.snapshot().errors == 0


@pytest.mark.parametrize("ring_slots", [1 << 17])
def test_100_000_waiting_operations_cost_no_processor_time(house: House) -> None:
    for number in range(100_000):
        house.wait_for({number % 5_000: 0})
    row = house.peers[IOPROC].process_table.row(house.wiring.process_row(PURGATORY))
    while row.snapshot().counters[0] < 100_000 or not row.snapshot().sleeping:
        os.sched_yield()
    loops, ticks = row.cells[LOOPS], cpu_ticks(house.pid)
    full_fence()
    time.sleep(0.5)
    assert row.cells[LOOPS] - loops <= 3
    assert cpu_ticks(house.pid) - ticks <= 1
    house.append(17, 1)
    assert len(house.completions(20)) == 20


def cpu_ticks(pid: int) -> int:
    """User and system time of a process in clock ticks of 10 ms (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_it_stops_when_told(house: House) -> None:
    house.wait_for({1: 0})
    house.supervision.send(Stop(1_000))
    assert house.join() == 0


def test_it_stops_by_itself_when_the_supervisor_is_gone(house: House) -> None:
    house.supervision.close()
    assert house.join() == 0


def test_who_reads_within_a_segment_is_woken_by_a_record_in_the_next_one(house: House) -> None:
    """No answer reaches beyond its segment; whoever has read to its end goes on waiting for his bytes."""
    within = house.wait_for({7: 100}, needed_bytes=1_000_000, within=1)
    house.wait_for({7: 100}, needed_bytes=1_000_000, netproc=1)
    house.in_step()
    house.append(7, 110)
    house.table.cells[house.table.at(7) + ACTIVE_SEGMENT] = 110
    house.append(7, 110)
    house.in_step()
    assert house.completions(1, patience_ms=0) == []
    house.append(7, 111)
    assert house.completions(1) == [(within, CompletionReason.SATISFIED)]
    house.in_step()
    assert house.completions(1, netproc=1, patience_ms=0) == []
    assert house.watchers(7) == 1
