"""How the processes of one instance find their shared memory: names, sizes, who attaches to what.

The supervisor makes a `Wiring` before it forks, creates the regions through it and never touches their bytes.
A child makes an `Attachment` from the wiring it inherited and the generations of its peers, and keeps it right
as the supervisor tells of peers that died (`peer_down`) and came back (`peer_up`).

Each region is a file in the instance's private directory (runtime_directory.py), the ZeroMQ sockets beside it:

    processes                              process table, one row per planned role
    partitions                             partition table
    image, image-<version>                 metadata image: pointer, versions
    samples                                what clients have used of their quotas, one part per network process
    traffic                                what network processes count, where there is a metrics process
    logs                                   sizes of led logs, where there is a metrics process
    pool-<role>.g<generation>              payload pool of a network process or the coordinator
    ring-<writer>.g<n>-<reader>.g<n>       one ring per ordered pair of living generations
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final

from appliance.channels.cleaner_channel import FROM_CLEANER, TO_CLEANER
from appliance.channels.coordinator_channel import FROM_NETPROC, TO_NETPROC
from appliance.channels.marker_channel import MARKER_MESSAGE
from appliance.channels.metadata_image import POINTER_BYTES, ImageReader
from appliance.channels.partition_table import PartitionTable, table_size_bytes
from appliance.channels.purgatory_channel import COMPLETION, POKE, WATCH
from appliance.channels.replica_channel import FOLLOWED, MOVED
from appliance.channels.request_channel import REQUEST, RESPONSE
from appliance.channels.roles import (
    KEYS,
    Role,
    RoleKind,
    planned_roles,
    ring_routes,
    running_roles,
    services_roles,
)
from appliance.channels.traffic_table import log_sizes_bytes, traffic_size_bytes
from appliance.config import Settings
from appliance.errors import HostFault
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.line_ring import LineRing
from appliance.ipc.process_table import (
    ProcessRow,
    ProcessTable,
    own_row,
    process_table_size_bytes,
    row_position,
)
from appliance.ipc.rate_samples import samples_size_bytes
from appliance.ipc.ring import RingReader, RingWriter, ring_size_bytes
from appliance.ipc.shared_memory import Region, names, unlink

AUDITOR_POOL_BYTES: Final = 2 << 20
"""The auditor has one batch in flight."""
METRICS_POOL_BYTES: Final = 1 << 20
"""The metrics process asks each coordinator one question at a time."""
SERVICES_POOL_BYTES: Final = 32 << 20
"""A services process has at most one batch in flight for each partition of an internal topic."""
PROCESSES: Final = "processes"
"""Name of the process table in the private directory."""
IMAGE: Final = "image"
"""Name there of the region that points to the metadata image."""

RING_MESSAGES: Mapping[tuple[RoleKind, RoleKind], Struct] = {
    (RoleKind.NETPROC, RoleKind.IOPROC): REQUEST,
    (RoleKind.IOPROC, RoleKind.NETPROC): RESPONSE,
    (RoleKind.NETPROC, RoleKind.PURGATORY): WATCH,
    (RoleKind.PURGATORY, RoleKind.NETPROC): COMPLETION,
    (RoleKind.IOPROC, RoleKind.PURGATORY): POKE,
    (RoleKind.PURGATORY, RoleKind.IOPROC): COMPLETION,
    (RoleKind.CLEANER, RoleKind.IOPROC): FROM_CLEANER,
    (RoleKind.IOPROC, RoleKind.CLEANER): TO_CLEANER,
    (RoleKind.CLEANER, RoleKind.REPLICA): FROM_CLEANER,
    (RoleKind.REPLICA, RoleKind.CLEANER): TO_CLEANER,
    (RoleKind.NETPROC, RoleKind.COORDINATOR): FROM_NETPROC,
    (RoleKind.COORDINATOR, RoleKind.NETPROC): TO_NETPROC,
    (RoleKind.COORDINATOR, RoleKind.IOPROC): REQUEST,
    (RoleKind.IOPROC, RoleKind.COORDINATOR): RESPONSE,
    (RoleKind.AUDITOR, RoleKind.IOPROC): REQUEST,
    (RoleKind.IOPROC, RoleKind.AUDITOR): RESPONSE,
    (RoleKind.METRICS, RoleKind.COORDINATOR): FROM_NETPROC,
    (RoleKind.COORDINATOR, RoleKind.METRICS): TO_NETPROC,
    (RoleKind.SERVICES, RoleKind.IOPROC): REQUEST,
    (RoleKind.IOPROC, RoleKind.SERVICES): RESPONSE,
    (RoleKind.COORDINATOR, RoleKind.COORDINATOR): MARKER_MESSAGE,
    (RoleKind.IOPROC, RoleKind.REPLICA): MOVED,
    (RoleKind.REPLICA, RoleKind.IOPROC): FOLLOWED,
}

POOL_READERS: Mapping[RoleKind, frozenset[RoleKind]] = {
    RoleKind.NETPROC: frozenset({RoleKind.IOPROC, RoleKind.COORDINATOR}),
    RoleKind.COORDINATOR: frozenset({RoleKind.IOPROC, RoleKind.NETPROC, RoleKind.METRICS}),
    RoleKind.AUDITOR: frozenset({RoleKind.IOPROC}),
    RoleKind.METRICS: frozenset({RoleKind.COORDINATOR}),
    RoleKind.SERVICES: frozenset({RoleKind.IOPROC}),
}
"""Who has a pool → who attaches to it, for reading only."""

WRITE_PARTITIONS: frozenset[RoleKind] = frozenset(
    {RoleKind.CONTROLLER, RoleKind.IOPROC, RoleKind.REPLICA, RoleKind.PURGATORY}
)
"""Who writes words of the partition table; all others map it read-only."""


def instance_name(data_dir: Path) -> str:
    """Return `appliance-` and ten hex digits of the data directory's real path: what `status` calls the instance.

    Nothing on the host has this name, because anybody can compute it.
    """
    # A seed goes through SHA-512; hashlib would do the same, and load all of OpenSSL into every process.
    digest = random.Random(os.fsencode(data_dir.resolve())).getrandbits(40)
    return f"appliance-{digest:010x}"


@dataclass(frozen=True, slots=True)
class Wiring:
    """The plan of one instance. Frozen before the first fork; `doorbells` maps each role to its eventfd.

    `emptied_slots` had no log directory that was ever theirs when the instance began: new ones, or other disks.
    `clean_directories`, of those that several processes share, had been closed in good order by then; each with a name
    for this life of the instance, by which its processes tell that it was one of them who began there.
    `file_configs` is what the configuration file says of settings that may change at run time, if it was read again.
    `hash_secret` is for hashes of names that clients choose.
    """

    settings: Settings
    instance: str
    runtime_dir: Path
    doorbells: Mapping[Role, int]
    emptied_slots: frozenset[int] = frozenset()
    clean_directories: Mapping[Path, str] = field(default_factory=dict)
    file_configs: Mapping[str, str] | None = None
    hash_secret: bytes = field(default_factory=partial(os.urandom, 16), repr=False)

    @property
    def planned(self) -> tuple[Role, ...]:
        return planned_roles(self.settings)

    @property
    def running(self) -> tuple[Role, ...]:
        return running_roles(self.settings)

    def process_row(self, role: Role) -> int:
        """The role's row in the process table."""
        return self.planned.index(role)

    def socket_path(self, name: str) -> str:
        """Path of a Unix socket of this instance: `controller.zmq`, `acceptor.zmq`, `acceptor.fd`."""
        return str(self.runtime_dir / name)

    def zmq_address(self, name: str) -> str:
        return f"ipc://{self.socket_path(name)}"

    # Names and sizes

    @property
    def processes_name(self) -> str:
        return f"{self.runtime_dir}/{PROCESSES}"

    @property
    def partitions_name(self) -> str:
        return f"{self.runtime_dir}/partitions"

    @property
    def image_name(self) -> str:
        return f"{self.runtime_dir}/{IMAGE}"

    @property
    def samples_name(self) -> str:
        return f"{self.runtime_dir}/samples"

    @property
    def traffic_name(self) -> str:
        return f"{self.runtime_dir}/traffic"

    @property
    def logs_name(self) -> str:
        return f"{self.runtime_dir}/logs"

    def pool_name(self, role: Role, generation: int) -> str:
        return f"{self.runtime_dir}/pool-{role.token}.g{generation}"

    def pool_bytes(self, role: Role) -> int:
        settings = self.settings
        if role.kind is RoleKind.COORDINATOR:
            return settings.broker.coordinator_pool_bytes
        if role.kind is RoleKind.AUDITOR:
            return AUDITOR_POOL_BYTES
        if role.kind is RoleKind.METRICS:
            return METRICS_POOL_BYTES
        if role.kind is RoleKind.SERVICES:
            return SERVICES_POOL_BYTES
        return settings.network.pool_bytes

    def ring_name(self, writer: Role, writer_generation: int, reader: Role, reader_generation: int) -> str:
        return (
            f"{self.runtime_dir}/ring-{writer.token}.g{writer_generation}-{reader.token}.g{reader_generation}"
        )

    # The supervisor's part

    def create_standing_regions(self) -> None:
        """Creates the tables that outlive every child."""
        settings = self.settings
        sizes = {
            self.processes_name: process_table_size_bytes(len(self.planned)),
            self.partitions_name: table_size_bytes(settings.broker.max_partitions, settings.slots),
            self.image_name: POINTER_BYTES,
            self.samples_name: samples_size_bytes(settings.network.processes),
        }
        if settings.counts_traffic:
            rows = settings.broker.max_partitions
            sizes[self.traffic_name] = traffic_size_bytes(settings.network.processes, rows, len(self.planned))
            sizes[self.logs_name] = log_sizes_bytes(
                rows, settings.slots * settings.io.workers + settings.services.processes
            )
        for name, size_bytes in sizes.items():
            Region.create(name, size_bytes).close()

    def create_for(self, role: Role, generation: int, peers: Mapping[Role, int]) -> None:
        """Creates pool and rings of `role`'s new generation, towards the current generation of its peers."""
        if role.kind in POOL_READERS:
            Region.create(self.pool_name(role, generation), self.pool_bytes(role)).close()
        size_bytes = ring_size_bytes(self.settings.network.ring_slots)
        for writer, reader in ring_routes(self.settings):
            if writer == role and reader in peers:
                Region.create(self.ring_name(role, generation, reader, peers[reader]), size_bytes).close()
            elif reader == role and writer in peers:
                Region.create(self.ring_name(writer, peers[writer], role, generation), size_bytes).close()

    def remove_for(self, role: Role, generation: int) -> None:
        """Removes the names of a dead generation; memory goes when its last peer lets go."""
        mark = f"{role.token}.g{generation}"
        for name in names(self.runtime_dir):
            kind, _, parties = name.removeprefix(f"{self.runtime_dir}/").partition("-")
            if kind in {"ring", "pool"} and mark in parties.split("-"):
                unlink(name)

    # A child's part

    def close_bells_of_strangers(self, role: Role) -> None:
        """Close, in the new process of `role`, the doorbells of those whom it never rings.

        It rings those with whom it shares a ring. A network process also rings the key process (key_channel.py).
        Network processes and coordinators ring the services processes.
        """
        known = {role}
        if role.kind is RoleKind.NETPROC:
            known.add(KEYS)
        if role.kind in {RoleKind.NETPROC, RoleKind.COORDINATOR}:
            known.update(services_roles(self.settings))
        for writer, reader in ring_routes(self.settings):
            if role in (writer, reader):
                known |= {writer, reader}
        for other, eventfd in self.doorbells.items():
            if other not in known:
                os.close(eventfd)


class Attachment:
    """A child's view of the shared memory: its own row and doorbell, its rings, its peers' pools.

    What it does not write is mapped read-only: a store there ends in a TypeError, and not in another process.
    """

    def __init__(self, wiring: Wiring, role: Role, generation: int, peers: Mapping[Role, int]) -> None:
        self.wiring = wiring
        self.role = role
        self.generation = generation
        number = wiring.process_row(role)
        self._processes = Region.open(wiring.processes_name, writable=False)
        self._own_page = Region.open_page(wiring.processes_name, row_position(number))
        self._partitions = Region.open(wiring.partitions_name, writable=role.kind in WRITE_PARTITIONS)
        self._image = Region.open(wiring.image_name, writable=role.kind is RoleKind.CONTROLLER)
        self.process_table = ProcessTable(self._processes.view)
        self.row: ProcessRow = own_row(self._own_page.view, number)
        self.last_lines = LineRing(self._own_page.view)
        self.partitions = PartitionTable(self._partitions.view, slots=wiring.settings.slots)
        self.image = ImageReader(wiring.runtime_dir, self._image.view)
        self.image_pointer = self._image.view
        self.doorbell = Doorbell(wiring.doorbells[role], self.row.sleeping_cell)
        self.generations: dict[Role, int] = {}
        self.inbound: dict[Role, RingReader] = {}
        self.outbound: dict[Role, RingWriter] = {}
        self.bells: dict[Role, Doorbell] = {}
        self.pools: dict[Role, Region] = {}
        self._regions: dict[Role, list[Region]] = {}
        self.pool: Region | None = None
        if role.kind in POOL_READERS:
            self.pool = Region.open(wiring.pool_name(role, generation))
        for peer, peer_generation in peers.items():
            self.peer_up(peer, peer_generation)

    @property
    def clean_seen_by(self) -> Mapping[Path, str]:
        """Log directories that were closed in good order before this life: none, after a life that was killed."""
        return self.wiring.clean_directories if self.generation == 1 else {}

    def services_bells(self) -> tuple[Doorbell, ...]:
        """The doorbells of the services processes, which share no ring with those that ring them."""
        return tuple(map(self._doorbell, services_roles(self.wiring.settings)))

    def _doorbell(self, role: Role) -> Doorbell:
        row = self.process_table.row(self.wiring.process_row(role))
        return Doorbell(self.wiring.doorbells[role], row.sleeping_cell)

    def peer_up(self, peer: Role, generation: int) -> bool:
        """Attaches to a peer's new generation. False where no ring runs between the two, or it is gone again."""
        if self.generations.get(peer) == generation:
            return False
        self.peer_down(peer)
        regions: list[Region] = []
        wiring = self.wiring
        for writer, reader in ring_routes(wiring.settings):
            ours = (writer, reader)
            if ours not in ((self.role, peer), (peer, self.role)):
                continue
            generations = {self.role: self.generation, peer: generation}
            name = wiring.ring_name(writer, generations[writer], reader, generations[reader])
            try:
                region = Region.open(name)
            except HostFault:
                continue  # it died again already; the supervisor will tell
            regions.append(region)
            message = RING_MESSAGES[writer.kind, reader.kind]
            if writer == self.role:
                self.outbound[peer] = RingWriter(region.view, message)
            else:
                self.inbound[peer] = RingReader(region.view, message)
        if not regions:
            return False
        if self.role.kind in POOL_READERS.get(peer.kind, ()):
            with suppress(HostFault):
                self.pools[peer] = Region.open(wiring.pool_name(peer, generation), writable=False)
        self.bells[peer] = self._doorbell(peer)
        self._regions[peer] = regions
        self.generations[peer] = generation
        return True

    def peer_down(self, peer: Role) -> None:
        """Lets go of everything shared with a dead peer."""
        self.generations.pop(peer, None)
        self.inbound.pop(peer, None)
        self.outbound.pop(peer, None)
        self.bells.pop(peer, None)
        regions = self._regions.pop(peer, [])
        pool = self.pools.pop(peer, None)
        if pool is not None:
            regions.append(pool)
        for region in regions:
            region.close()
