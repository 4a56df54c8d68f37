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
from contextlib import suppress

from appliance.channels.child import EXIT_CANNOT_START, EXIT_CLEAN, Child
from appliance.channels.controller_link import CONTROLLER_SOCKET
from appliance.channels.metadata_image import ImagePublisher
from appliance.cluster import BrokerSlot
from appliance.config import Settings
from appliance.config.dynamic import FILE
from appliance.control.controller.agent import ControllerAgent, Superseded
from appliance.control.controller.control_socket import ControlSocket
from appliance.control.controller.controller import Controller
from appliance.control.controller.slot_states import SlotStates
from appliance.control.controller.takeover import Fence, cluster_id, register, take_over, win
from appliance.control.store.errors import SessionExpired, StoreDamaged, StoreRefusal
from appliance.control.store.metadata_store import MetadataStore
from appliance.control.store.opening import Registrations, open_store
from appliance.errors import CorruptFile, HostFault, StorageFault
from appliance.ipc.agent import freeze_garbage
from appliance.ipc.process_table import ProcessState
from appliance.process.agent import AgentProcess

RETRY_MS_MIN = 250
RETRY_MS_MAX = 5_000

_logger = logging.getLogger(__name__)


class LedNoMore(HostFault):
    """The store failed a controller that led. The next one must be another process: workers greet each once."""


def run(child: Child) -> int:
    """Serves until the supervisor says stop; the exit code."""
    process = AgentProcess(child)
    registrations = Registrations(child.settings, process.clock)
    agent = ControllerAgent(process, child.wiring.file_configs)
    retry_ms = RETRY_MS_MIN
    try:
        while True:
            try:
                _live(child, process, agent, registrations)
            except StorageFault as fault:
                _logger.error("cannot use the metadata store, opening it again in %d ms: %s", retry_ms, fault)
                if not agent.pause(retry_ms):
                    retry_ms = min(2 * retry_ms, RETRY_MS_MAX)
                    continue
            registrations.close()
            return EXIT_CLEAN
    except CorruptFile as damage:
        # The store was read several times, and no copy can take its place: starting again would not mend it.
        process.failed(str(damage), fatal=True)
        return EXIT_CANNOT_START
    except (StoreRefusal, SessionExpired, Superseded, LedNoMore) as change:
        _logger.warning("controller restarts: %s", change)
        return EXIT_CANNOT_START
    finally:
        process.stopping()


def _live(child: Child, process: AgentProcess, agent: ControllerAgent, registrations: Registrations) -> None:
    """One session with the store, from its beginning to its end."""
    store = open_store(child.settings, process.clock)
    try:
        _serve(child, process, agent, store, registrations=registrations)
    except (StorageFault, StoreDamaged) as fault:
        if process.attachment.row.snapshot().state is ProcessState.RUNNING:
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
        BrokerSlot(
            slot, settings.client_host, settings.main_listener.client_port + slot, settings.broker.rack
        )
        for slot in range(settings.slots)
    )


def _serve(
    child: Child,
    process: AgentProcess,
    agent: ControllerAgent,
    store: MetadataStore,
    *,
    registrations: Registrations,
) -> None:
    with agent.session(store):
        while (fence := win(store, process.clock)) is None:
            _logger.info("another controller is active; standing by")
            agent.await_vacancy(store)
            if agent.stopped:
                return
        _lead(child, process, agent, store, registrations=registrations.session(store), fence=fence)


def _lead(
    child: Child,
    process: AgentProcess,
    agent: ControllerAgent,
    store: MetadataStore,
    *,
    registrations: MetadataStore,
    fence: Fence,
) -> None:
    attachment, clock = process.attachment, process.clock
    settings, brokers = child.settings, slots_of(child.settings)
    slots = SlotStates(
        [broker.node_id for broker in brokers],
        workers=settings.io.workers,
        present=process.peers,
        held=process.held,
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
        if agent.file_configs is not None:
            state.broker_configs[FILE] = dict(agent.file_configs)
        register(
            registrations,
            brokers,
            fence,
            live=state.live,
            clock=clock,
            listeners=settings.listeners,
            begins_anew=image is None,
        )
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
            held=process.held,
            log_from=process.log_from,
            publisher=ImagePublisher(child.wiring.runtime_dir, attachment.image_pointer),
            send=socket.send,
            alarms=agent.alarm,
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
            process.ready()
        agent.serve(controller, socket, store=store, registrations=registrations)
    finally:
        socket.close()
