"""Which processes there are, and which rings run between them.

Roles are values; the table below is read by the supervisor (what to fork and restart), by the wiring (which
rings and pools to create), by `appliance status` (what to show) and by the tests.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar
from uuid import UUID

from appliance.config import Settings


class RoleKind(StrEnum):
    """The processes of the appliance, in the order in which they are started: what a record needs comes first."""

    SUPERVISOR = "supervisor"
    CONTROLLER = "controller"
    PURGATORY = "purgatory"
    IOPROC = "ioproc"
    REPLICA = "replica"
    NETPROC = "netproc"
    ACCEPTOR = "acceptor"
    COORDINATOR = "coordinator"
    CLEANER = "cleaner"
    AUDITOR = "auditor"
    KEYS = "keys"
    METRICS = "metrics"
    CONSOLE = "console"
    SERVICES = "services"


class Role:
    """One process: its kind, its slot (-1 where slots mean nothing to it) and its index. Immutable.

    There is one object for each role, so roles are compared and hashed by identity: they are the keys of every ring,
    pool and doorbell, a dozen look-ups a request.
    """

    __slots__ = ("index", "kind", "slot")

    kind: RoleKind
    index: int
    slot: int

    _known: ClassVar[dict[tuple[RoleKind, int, int], Role]] = {}

    def __new__(cls, kind: RoleKind, index: int = 0, slot: int = -1) -> Role:
        role = cls._known.get((kind, index, slot))
        if role is None:
            role = cls._known[kind, index, slot] = super().__new__(cls)
            object.__setattr__(role, "kind", kind)
            object.__setattr__(role, "index", index)
            object.__setattr__(role, "slot", slot)
        return role

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a role does not change: {name}")

    def __reduce__(self) -> tuple[type[Role], tuple[RoleKind, int, int]]:
        return Role, (self.kind, self.index, self.slot)

    def __repr__(self) -> str:
        return f"Role({self})"

    def __str__(self) -> str:
        """`controller`, `netproc 1`, `replica 2`, `ioproc 0.1` (slot.worker), `coordinator` and `coordinator 1`."""
        match self.kind:
            case RoleKind.IOPROC:
                return f"{self.kind} {self.slot}.{self.index}"
            case RoleKind.REPLICA:
                return f"{self.kind} {self.slot}"
            case RoleKind.NETPROC:
                return f"{self.kind} {self.index}"
            case RoleKind.COORDINATOR | RoleKind.SERVICES if self.index:
                return f"{self.kind} {self.index}"
            case _:
                return str(self.kind)

    @property
    def token(self) -> str:
        """The role as a piece of a shared-memory name: `netproc1`, `ioproc0.1`."""
        return str(self).replace(" ", "")


SUPERVISOR = Role(RoleKind.SUPERVISOR)
CONTROLLER = Role(RoleKind.CONTROLLER)
PURGATORY = Role(RoleKind.PURGATORY)
COORDINATOR = Role(RoleKind.COORDINATOR)
CLEANER = Role(RoleKind.CLEANER)
AUDITOR = Role(RoleKind.AUDITOR)
ACCEPTOR = Role(RoleKind.ACCEPTOR)
KEYS = Role(RoleKind.KEYS)
METRICS = Role(RoleKind.METRICS)
CONSOLE = Role(RoleKind.CONSOLE)

# Writer kind → reader kind. One ring per ordered pair of living processes; no ring has two writers.
RING_ROUTES: tuple[tuple[RoleKind, RoleKind], ...] = (
    (RoleKind.NETPROC, RoleKind.IOPROC),  # requests
    (RoleKind.IOPROC, RoleKind.NETPROC),  # responses
    (RoleKind.NETPROC, RoleKind.PURGATORY),  # watches
    (RoleKind.PURGATORY, RoleKind.NETPROC),  # completions
    (RoleKind.IOPROC, RoleKind.PURGATORY),  # pokes, deadlines of held answers
    (RoleKind.PURGATORY, RoleKind.IOPROC),  # deadlines that have come
    (RoleKind.CLEANER, RoleKind.IOPROC),  # surveys, swaps
    (RoleKind.IOPROC, RoleKind.CLEANER),  # their answers; what to look at
    (RoleKind.CLEANER, RoleKind.REPLICA),  # surveys, swaps of followed copies
    (RoleKind.REPLICA, RoleKind.CLEANER),  # their answers; what to look at
    (RoleKind.NETPROC, RoleKind.COORDINATOR),  # requests of groups
    (RoleKind.COORDINATOR, RoleKind.NETPROC),  # their answers
    (RoleKind.COORDINATOR, RoleKind.IOPROC),  # appends and reads of the internal topics
    (RoleKind.IOPROC, RoleKind.COORDINATOR),  # their answers
    (RoleKind.AUDITOR, RoleKind.IOPROC),  # appends to the topic of the audit journal
    (RoleKind.IOPROC, RoleKind.AUDITOR),  # their answers
    (RoleKind.METRICS, RoleKind.COORDINATOR),  # questions about groups
    (RoleKind.COORDINATOR, RoleKind.METRICS),  # their answers
    (RoleKind.SERVICES, RoleKind.IOPROC),  # appends and reads of delayed records
    (RoleKind.IOPROC, RoleKind.SERVICES),  # their answers
    (RoleKind.COORDINATOR, RoleKind.COORDINATOR),  # markers for the other's partitions, and their answers
    (RoleKind.IOPROC, RoleKind.REPLICA),  # a led partition has more than its followers
    (RoleKind.REPLICA, RoleKind.IOPROC),  # a follower has more
)

# A slot's replica follows the other slots' workers, never its own.
_ACROSS_SLOTS = frozenset({RoleKind.IOPROC, RoleKind.REPLICA})


def planned_roles(settings: Settings) -> tuple[Role, ...]:
    """Every role of this configuration, in start order; a role's place is its row in the process table."""
    slots = range(settings.slots)
    roles = [SUPERVISOR, CONTROLLER, PURGATORY]
    roles += [Role(RoleKind.IOPROC, worker, slot) for slot in slots for worker in range(settings.io.workers)]
    roles += [Role(RoleKind.REPLICA, 0, slot) for slot in slots]
    roles += [Role(RoleKind.NETPROC, index) for index in range(settings.network.processes)]
    roles += [ACCEPTOR]
    roles += [Role(RoleKind.COORDINATOR, index) for index in range(settings.broker.coordinator_processes)]
    roles += [CLEANER]
    if settings.audit.is_on:
        roles += [AUDITOR]
    if settings.validates_tokens:
        roles += [KEYS]
    if settings.metrics.is_on:
        roles += [METRICS]
    if settings.console.is_on:
        roles += [CONSOLE]
    roles += services_roles(settings)
    return tuple(roles)


def services_roles(settings: Settings) -> tuple[Role, ...]:
    """The services processes."""
    return tuple(Role(RoleKind.SERVICES, index) for index in range(settings.services.processes))


def owner_index(topic_id: UUID, partition: int, *, workers: int) -> int:
    """Which of a slot's `workers` owns a partition while the slot leads it.

    A topic's partitions go round, and topics begin anywhere. It depends on nothing that changes while the instance
    lives, so everybody comes to the same, and nobody has to be told.
    """
    return (topic_id.int + partition) % workers


def owner_of(slot: int, topic_id: UUID, partition: int, *, workers: int) -> Role:
    """The worker that owns a partition while `slot` leads it."""
    return Role(RoleKind.IOPROC, owner_index(topic_id, partition, workers=workers), slot)


def coordinator_index(partition: int, *, processes: int) -> int:
    """Which of the coordinator processes serves a partition of an internal topic.

    It depends on nothing that changes while the instance lives, so network processes and coordinators come to the same
    without asking, and a partition never moves from one process to another.
    """
    return partition % processes


def workers_of(slot: int, *, workers: int) -> tuple[Role, ...]:
    """All workers of `slot`."""
    return tuple(Role(RoleKind.IOPROC, index, slot) for index in range(workers))


def replica_of(slot: int) -> Role:
    """The process that keeps the copies in which `slot` follows."""
    return Role(RoleKind.REPLICA, 0, slot)


def running_roles(settings: Settings) -> tuple[Role, ...]:
    """Return every role but the supervisor: what it forks and keeps alive. One slot follows nobody."""
    absent = {RoleKind.SUPERVISOR}
    if settings.slots == 1:
        absent.add(RoleKind.REPLICA)
    return tuple(role for role in planned_roles(settings) if role.kind not in absent)


def ring_routes(settings: Settings) -> tuple[tuple[Role, Role], ...]:
    """Every (writer, reader) pair of running roles that a ring connects."""
    roles = running_roles(settings)
    return tuple(
        (writer, reader)
        for writer_kind, reader_kind in RING_ROUTES
        for writer in roles
        if writer.kind is writer_kind
        for reader in roles
        if reader.kind is reader_kind
        and reader is not writer
        and not ({writer_kind, reader_kind} == _ACROSS_SLOTS and writer.slot == reader.slot)
    )
