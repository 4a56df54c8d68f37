"""The controller process: topics, placement, leaders, producer id blocks; the metadata store; the metadata
image.

Does: keeps the store, decides, tells the workers which partitions they lead, publishes the image. Never:
opens a log, speaks with a client, waits for a worker. Dies: the supervisor restarts it. Clients go on
producing and consuming, since nobody asks it on that way; what was being created or deleted is finished by
its next life, whose controller epoch fences this one.

A full disk, an I/O error of the store's files or a ZooKeeper that does not answer keep it from beginning: it logs the
reason and opens the store again, after RETRY_MS_MIN and then after twice as long each time, up to RETRY_MS_MAX, because
the data plane goes on without it. The same faults in a controller that leads, and damage that an open store meets, end
the process: the next one begins by reading, and the workers say hello to it. An I/O error looks like damage to SQLite,
so the open alone decides, which reads everything several times. Only where it finds the store damaged and no copy to
take its place does the appliance end. A session that is over, or may be, ends the process, too. The registrations of
slots stay meanwhile, in ZooKeeper by a session that it hands on.
"""

from __future__ import annotations

import logging
import os
import select
from contextlib import suppress

from appliance.channels.child import EXIT_CANNOT_START, EXIT_CLEAN, Child
from appliance.channels.controller_link import CONTROLLER_SOCKET
from appliance.channels.metadata_image import ImagePublisher
from appliance.channels.supervision import Failed, Heartbeat, Ready, Stop
from appliance.channels.wiring import Attachment
from appliance.clock import Clock, SystemClock
from appliance.cluster import BrokerSlot
from appliance.config import Settings
from appliance.control.controller.agent import ControllerLoop, Superseded
from appliance.control.controller.control_socket import ControlSocket
from appliance.control.controller.controller import Controller
from appliance.control.controller.slot_states import SlotStates
from appliance.control.controller.takeover import Fence, cluster_id, register, take_over, win
from appliance.control.store.errors import SessionExpired, StoreDamaged, StoreRefusal
from appliance.control.store.metadata_store import MetadataStore
from appliance.control.store.opening import Registrations, open_store
from appliance.errors import CorruptFile, HostFault, StorageFault
from appliance.ipc.agent import DutyCycle, freeze_garbage
from appliance.ipc.process_table import ProcessState

RETRY_MS_MIN = 250
RETRY_MS_MAX = 5_000

_NS_PER_MS = 1_000_000

_logger = logging.getLogger(__name__)


class LedNoMore(HostFault):
    """The store failed a controller that led. The next one must be another process: workers greet each once."""


def run(child: Child) -> int:
    """Serves until the supervisor says stop; the exit code."""
    clock = SystemClock()
    registrations = Registrations(child.settings, clock)
    attachment = child.attach()
    attachment.row.start(os.getpid(), child.generation, now_ms=clock.now_ms(), now_ns=clock.monotonic_ns())
    retry_ms = RETRY_MS_MIN
    try:
        while True:
            try:
                _live(child, attachment, registrations, clock)
            except StorageFault as fault:
                _logger.error("the metadata store is opened again in %d ms: %s", retry_ms, fault)
                if not _told_to_stop(child, clock, within_ms=retry_ms):
                    retry_ms = min(2 * retry_ms, RETRY_MS_MAX)
                    continue
            registrations.close()
            return EXIT_CLEAN
    except CorruptFile as damage:
        # The store was read several times, and no copy can take its place: starting again would not mend it.
        child.supervision.send(Failed(str(damage), fatal=True))
        return EXIT_CANNOT_START
    except (StoreRefusal, SessionExpired, Superseded, LedNoMore) as change:
        _logger.warning("beginning anew: %s", change)
        return EXIT_CANNOT_START
    finally:
        attachment.row.set_state(ProcessState.STOPPING)


def _told_to_stop(child: Child, clock: Clock, *, within_ms: int) -> bool:
    """Waits for Stop, and answers heartbeats; False when the time is up."""
    poll = select.poll()
    poll.register(child.supervision.fileno(), select.POLLIN)
    until_ns = clock.monotonic_ns() + within_ms * _NS_PER_MS
    while (left_ms := (until_ns - clock.monotonic_ns()) / _NS_PER_MS) > 0:
        if not poll.poll(left_ms):
            break
        words = child.supervision.receive()
        if words is None or any(isinstance(word, Stop) for word in words):
            return True
        for word in words:
            if isinstance(word, Heartbeat):
                child.supervision.send(word)
    return False


def _live(child: Child, attachment: Attachment, registrations: Registrations, clock: Clock) -> None:
    """One session with the store, from its beginning to its end."""
    store = open_store(child.settings, clock)
    try:
        _serve(child, attachment, store, registrations=registrations, clock=clock)
    except (StorageFault, StoreDamaged) as fault:
        if attachment.row.snapshot().state is ProcessState.RUNNING:
            raise LedNoMore(str(fault)) from fault
        # Not the verdict on a damaged store yet: that is what opening it again says.
        raise fault if isinstance(fault, StorageFault) else StorageFault(str(fault)) from fault
    finally:
        # A session that cannot say goodbye ends with its lock.
        with suppress(StorageFault, StoreDamaged):
            store.close()


def slots_of(settings: Settings) -> tuple[BrokerSlot, ...]:
    """The slots as clients are told of them."""
    return tuple(
        BrokerSlot(slot, settings.client_host, settings.port + slot, settings.broker.rack)
        for slot in range(settings.slots)
    )


def _serve(
    child: Child,
    attachment: Attachment,
    store: MetadataStore,
    *,
    registrations: Registrations,
    clock: Clock,
) -> None:
    cycle = DutyCycle(attachment.doorbell, attachment.row, monotonic_ns=clock.monotonic_ns)
    loop = ControllerLoop(cycle, attachment.row, store=store, supervision=child.supervision, clock=clock)
    try:
        while (fence := win(store, clock)) is None:
            _logger.info("another controller lives; standing by")
            loop.await_vacancy()
            if loop.stopped:
                return
        _lead(
            child,
            attachment,
            store,
            registrations=registrations.session(store),
            fence=fence,
            loop=loop,
            clock=clock,
        )
    finally:
        cycle.close()


def _lead(
    child: Child,
    attachment: Attachment,
    store: MetadataStore,
    *,
    registrations: MetadataStore,
    fence: Fence,
    loop: ControllerLoop,
    clock: Clock,
) -> None:
    settings, brokers = child.settings, slots_of(child.settings)
    slots = SlotStates(
        [broker.node_id for broker in brokers],
        workers=settings.io.workers,
        present=child.peers,
        held=child.held,
    )
    # Only now: whoever binds an address takes it from the one before.
    socket = ControlSocket(child.wiring.zmq_address(CONTROLLER_SOCKET))
    try:
        cluster = cluster_id(store)
        image = attachment.image.current()
        state = take_over(
            store,
            attachment.partitions,
            slots=slots,
            fence=fence,
            image=image,
            emptied=child.wiring.emptied_slots,
        )
        register(registrations, brokers, fence, live=state.live, clock=clock, begins_anew=image is None)
        controller = Controller(
            state,
            store,
            registrations=registrations,
            fence=fence,
            cluster_id=cluster,
            settings=settings,
            slots=slots,
            brokers=brokers,
            presume=image is not None or child.generation > 1,
            held=child.held,
            publisher=ImagePublisher(child.wiring.runtime_dir, attachment.image_pointer),
            send=socket.send,
            alarms=loop.alarm,
            clock=clock,
        )
        _logger.info(
            "controller epoch %d, %d topics, %d deletions to finish",
            fence.epoch,
            len(state.topics),
            len(state.deletions),
        )
        freeze_garbage()
        if attachment.row.snapshot().state is not ProcessState.RUNNING:
            attachment.row.set_state(ProcessState.RUNNING)
            child.supervision.send(Ready())
        loop.serve(controller, socket, registrations=registrations)
    finally:
        socket.close()
