"""Consumer groups of both protocols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import INT32_MAX
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

_MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")
_ASSIGNORS: Final = ("uniform", "range")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Consumer groups."""

    min_session_timeout_ms: int = option(
        6000,
        "group.min.session.timeout.ms",
        unit="ms",
        minimum=0,
        doc="Shortest session timeout that a member of a classic group can request.",
    )
    max_session_timeout_ms: int = option(
        1_800_000,
        "group.max.session.timeout.ms",
        unit="ms",
        minimum=0,
        doc="Longest session timeout that a member of a classic group can request.",
    )
    initial_rebalance_delay_ms: int = option(
        3000,
        "group.initial.rebalance.delay.ms",
        unit="ms",
        minimum=0,
        doc="Time for which the first rebalance of an empty group waits for more members. Each new "
        "member extends this time.",
    )
    max_size: int = option(
        INT32_MAX,
        "group.max.size",
        unit="members",
        minimum=1,
        doc="Maximum number of members of a classic group.",
    )
    max_count: int = option(
        100_000,
        "group.max.count",
        unit="groups",
        minimum=1,
        doc="Maximum number of groups. If a client would create one more group, it gets "
        "GROUP_MAX_SIZE_REACHED. If a client would create one more group by a commit of offsets, it"
        " gets POLICY_VIOLATION. To make room, the coordinator removes groups without members and "
        "offsets.",
    )
    members_max: int = option(
        100_000,
        "group.members.max",
        unit="members",
        minimum=1,
        doc="Maximum number of members of all groups together. A further member gets GROUP_MAX_SIZE_REACHED.",
    )
    max_bytes: int = option(
        8 << 20,
        "group.max.bytes",
        unit="bytes",
        minimum=1,
        doc="Maximum memory of one group for the data that its members send: ids, protocols, "
        "subscriptions and assignments. A request that needs more memory gets "
        "GROUP_MAX_SIZE_REACHED.",
    )
    members_max_bytes: int = option(
        128 << 20,
        "group.members.max.bytes",
        unit="bytes",
        minimum=1,
        doc="Maximum memory of all groups together for the data that members send, and for the names of"
        " the groups. A typical member needs about 600 bytes. Above the maximum, a commit for a new"
        " group gets POLICY_VIOLATION.",
    )
    pending_members_max: int = option(
        20_000,
        "group.pending.members.max",
        unit="members",
        minimum=1,
        doc="Maximum number of members of all groups together that have received a member id and have not "
        "joined with it yet. Above the maximum, the coordinator forgets the oldest of these ids, and the "
        "client must request another id. The coordinator keeps an unused id for one minute, or for the "
        "session timeout if that is shorter.",
    )
    request_max_bytes: int = option(
        2**19,
        "group.request.max.bytes",
        unit="bytes",
        minimum=4096,
        doc="Maximum size of a request for groups or offsets. If a request is larger, the broker closes"
        " the connection. A SyncGroup request may be eight times as large, because it carries the "
        "assignments of all members. A commit of offsets may be as large as a batch.",
    )
    consumer_session_timeout_ms: int = option(
        45_000,
        "group.consumer.session.timeout.ms",
        unit="ms",
        minimum=1,
        doc="Time after which the coordinator removes a member of a consumer group (KIP-848) that sends"
        " no heartbeat.",
    )
    consumer_min_session_timeout_ms: int = option(
        45_000,
        "group.consumer.min.session.timeout.ms",
        unit="ms",
        minimum=1,
        doc="Shortest session timeout that you can set for a consumer group.",
    )
    consumer_max_session_timeout_ms: int = option(
        60_000,
        "group.consumer.max.session.timeout.ms",
        unit="ms",
        minimum=1,
        doc="Longest session timeout that you can set for a consumer group.",
    )
    consumer_heartbeat_interval_ms: int = option(
        5_000,
        "group.consumer.heartbeat.interval.ms",
        unit="ms",
        minimum=1,
        doc="Interval at which members of consumer groups must send heartbeats. The interval must be "
        "shorter than the session timeout.",
    )
    consumer_min_heartbeat_interval_ms: int = option(
        5_000,
        "group.consumer.min.heartbeat.interval.ms",
        unit="ms",
        minimum=1,
        doc="Shortest heartbeat interval that you can set for a consumer group.",
    )
    consumer_max_heartbeat_interval_ms: int = option(
        15_000,
        "group.consumer.max.heartbeat.interval.ms",
        unit="ms",
        minimum=1,
        doc="Longest heartbeat interval that you can set for a consumer group.",
    )
    consumer_max_size: int = option(
        INT32_MAX,
        "group.consumer.max.size",
        unit="members",
        minimum=1,
        doc="Maximum number of members of a consumer group.",
    )
    consumer_assignors: tuple[str, ...] = option(
        _ASSIGNORS,
        "group.consumer.assignors",
        choices=_ASSIGNORS,
        doc="Assignors that members of consumer groups can request. If a member requests no assignor, the "
        "coordinator uses the first assignor of this list.",
    )
    consumer_migration_policy: str = option(
        "bidirectional",
        "group.consumer.migration.policy",
        doc="Whether a group with members may change between the classic protocol and the protocol of "
        "KIP-848. `upgrade` allows only the change to KIP-848, and `downgrade` allows only the change to "
        "the classic protocol. `bidirectional` allows both changes, and `disabled` allows no change.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.consumer_migration_policy not in _MIGRATION_POLICIES:
            raise ConfigurationError(
                f"group.consumer.migration.policy = {self.consumer_migration_policy!r}: must be one of "
                f"{', '.join(_MIGRATION_POLICIES)}"
            )
        if not self.consumer_assignors or len(set(self.consumer_assignors)) < len(self.consumer_assignors):
            raise ConfigurationError(
                f"group.consumer.assignors = {','.join(self.consumer_assignors)!r}: must list one or more, each once"
            )
        for name, low, value, high in (
            (
                "session.timeout",
                self.consumer_min_session_timeout_ms,
                self.consumer_session_timeout_ms,
                self.consumer_max_session_timeout_ms,
            ),
            (
                "heartbeat.interval",
                self.consumer_min_heartbeat_interval_ms,
                self.consumer_heartbeat_interval_ms,
                self.consumer_max_heartbeat_interval_ms,
            ),
        ):
            if not low <= value <= high:
                raise ConfigurationError(
                    f"group.consumer.{name}.ms = {value}: must be from group.consumer.min.{name}.ms = {low} to "
                    f"group.consumer.max.{name}.ms = {high}"
                )
        if self.consumer_heartbeat_interval_ms >= self.consumer_session_timeout_ms:
            raise ConfigurationError(
                f"group.consumer.heartbeat.interval.ms = {self.consumer_heartbeat_interval_ms}: must be less than "
                f"group.consumer.session.timeout.ms = {self.consumer_session_timeout_ms}"
            )
