"""What the controller tells each worker and each replica process of its partitions: the Assign messages.

`copies` knows what each process has to hold, and cuts it into pieces; `worker_lines` numbers the messages and knows
which ones are unconfirmed. Here the two meet: who gets a message in this turn, and what it says of the slot beside the
partitions (defaults of logs, rates of replication).
"""

from __future__ import annotations

from appliance.channels.control_channel import ReplicationRates
from appliance.channels.roles import Role, RoleKind
from appliance.cluster import TopicImage
from appliance.config import BrokerConfigs, Settings
from appliance.config.dynamic import FOLLOWER_RATE, LEADER_RATE, replication_rate
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.copies import PIECES_MAX, Copies, Order
from appliance.control.controller.deciding import Turn
from appliance.control.controller.slot_states import SlotStates
from appliance.control.controller.worker_lines import WorkerSessions


class Assignments:
    """The messages of one controller to the processes that hold partitions."""

    __slots__ = ("_copies", "_lines", "_settings", "_slots", "_state")

    def __init__(
        self,
        state: ClusterState,
        copies: Copies,
        lines: WorkerSessions,
        *,
        slots: SlotStates,
        settings: Settings,
    ) -> None:
        self._state = state
        self._copies = copies
        self._lines = lines
        self._slots = slots
        self._settings = settings

    def of_turn(self, turn: Turn, appearing: dict[str, TopicImage], wave: int) -> set[Role]:
        """Send every worker and replica process its part of a turn.

        Args:
            appearing: the topics with partitions that are new in this turn, by name.
            wave: the number of the change, which the answers will name.

        Returns:
            The processes whose answers the change waits for.
        """
        copies, state = self._copies, self._state
        for name, topic in appearing.items():
            for partition in topic.partitions[turn.first[name] :]:
                copies.touch(name, partition.partition)
        for name in turn.altered:
            for partition in state.topics[name].partitions:
                copies.touch(name, partition.partition)
        for name, deletion in turn.doomed.items():
            for partition in deletion.topic.partitions:
                copies.touch(name, partition.partition)
        # The creation of a topic waits for a worker that is down. New settings wait for no process that is down,
        # because its next life begins with them. A mere creation waits for no follower.
        concerned = {
            self._slots.owner(partition.leader, topic.topic_id, partition.partition)
            for name, topic in appearing.items()
            for partition in topic.partitions[turn.first[name] :]
        }
        orders = copies.orders()
        for slot in self._slots.all:
            defaults = self._log_defaults(slot) if turn.brokers_altered else None
            for half in self._slots.processes(slot):
                order = orders.get(half)
                if not self._lines.is_up(half) or (order is None and defaults is None):
                    continue
                order = order or Order()
                if half.kind is RoleKind.IOPROC or order.removed or turn.altered or defaults is not None:
                    concerned.add(half)
                rates = None if defaults is None else self._rates(slot)
                self._send(half, order, waves=(wave,), log_defaults=defaults, rates=rates)
        return concerned

    def send_rest(self) -> None:
        """Send what the answers and deaths of this turn have made possible."""
        for half, order in self._copies.orders().items():
            self._send(half, order)

    def send_all(self, half: Role, order: Order, *, waves: tuple[int, ...]) -> int:
        """Send a process that has just registered everything that it has to hold. Return the number of the message."""
        return self._lines.assign(
            half,
            order,
            waves=waves,
            full=True,
            log_defaults=self._log_defaults(half.slot),
            rates=self._rates(half.slot),
        )

    def _send(
        self,
        half: Role,
        order: Order,
        *,
        waves: tuple[int, ...] = (),
        log_defaults: dict[str, str] | None = None,
        rates: ReplicationRates | None = None,
    ) -> None:
        for piece in order.pieces(None if waves else PIECES_MAX):
            number = self._lines.assign(half, piece, waves=waves, log_defaults=log_defaults, rates=rates)
            self._copies.sent(half, number, piece)
            log_defaults = rates = None

    def _log_defaults(self, slot: int) -> dict[str, str]:
        return BrokerConfigs.of(self._state.broker_configs, slot).log_defaults(self._settings)

    def _rates(self, slot: int) -> ReplicationRates:
        """Divide a leader's rate among the other slots, because each of them copies by itself."""
        stored = self._state.broker_configs
        others = [each for each in self._slots.all if each != slot]
        rates = {each: replication_rate(stored, each, LEADER_RATE) for each in others}
        return ReplicationRates(
            follower=replication_rate(stored, slot, FOLLOWER_RATE),
            leaders={each: -(-rate // len(others)) for each, rate in rates.items() if rate is not None},
        )
