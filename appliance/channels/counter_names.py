"""The counters of the process table by name, for each kind of process that has some, in their order there.

BOUNDS are those that count what was refused, dropped or forgotten because a bound was reached: `appliance status` tells
of them where they are not zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

COUNTER_NAMES: Final[Mapping[str, Sequence[str | None]]] = {
    "auditor": ("written_entries", "lost_entries", "appended_entries", "lost_topic_entries"),
    "controller": (
        "topics",
        "partitions",
        "pending_changes",
        "isr_shrinks",
        "isr_expansions",
        "unclean_elections",
    ),
    "cleaner": ("compacted_logs", "uncleanable_partitions", "rounds", "freed_bytes"),
    "coordinator": (
        "commits",
        "appends",
        "dropped_requests",
        "groups",
        "refused_groups",
        "refused_members",
        "forgotten_member_ids",
        "member_bytes",
        "transactional_ids",
        "refused_transactional_ids",
        "owed_transactions",
        "markers",
        "open_transactions",
        "timed_out_transactions",
    ),
    "purgatory": (
        "waiting",
        "watched_keys",
        "satisfied",
        "expired",
        "cancelled",
        "unsent",
        "held_answers",
        "expired_answers",
    ),
    "keys": ("keys", "fetches", "failed_fetches", "unknown_keys"),
    "metrics": (
        "refused_requests",
        "ended_connections",
        "group_rounds",
        "failed_group_rounds",
        "age_looks",
        "read_client_pushes",
        "unreadable_client_pushes",
        "dropped_client_series",
        "sent_otlp_requests",
        "failed_otlp_requests",
    ),
    "console": ("sessions", "refused_logins", "refused_requests", "ended_connections", "streams"),
    "services": (
        "delivered_records",
        "waiting_deliveries",
        "repeated_records",
        "dropped_records",
        "cancelled_records",
        "unread_records",
        "audited_records",
        "lost_observations",
        "unaudited_commits",
        "traced_records",
        "untraced_records",
        "dropped_steps",
        "waiting_records",
        "overdue_ms",
    ),
    "netproc": (
        "watched_partitions",
        "fetches_answered_early",
        "lost_audit_entries",
        "throttled_answers",
        "throttled_sessions",
        "forgotten_budgets",
        "throttled_ms",
        "client_pushes",
        "refused_client_pushes",
        "lost_client_pushes",
        "delayed_records",
        "handed_back_records",
        "dead_letters",
    ),
    "ioproc": (
        "failed_log_dirs_bits",
        "offline_partitions",
        "moving_partitions",
        "producer_ids",
        "forgotten_producer_ids",
        "lost_partitions",
        "repaired_batches",
        "failed_log_dir_errno",
    ),
}
"""Kind of role → the names of counter 0, 1, …; None where a counter is unused. See the role's duty cycle."""

BOUNDS: Final[Mapping[str, str]] = {
    "lost_entries": "entries of the audit journal could not be written: see the log of the auditor",
    "lost_topic_entries": "entries of the audit journal could not be appended to __audit_log",
    "lost_audit_entries": "entries of the audit journal were dropped, because the auditor did not take them",
    "forgotten_producer_ids": "producer ids were forgotten: see producer.ids.max, producer.ids.per.partition.max",
    "fetches_answered_early": "fetches were answered early: see network.waiting.fetch.partitions.max",
    "lost_client_pushes": "pushes of clients' metrics were refused, because the metrics process did not take them",
    "dropped_client_series": "series of clients' metrics were dropped: see metrics.client.telemetry.series.max",
    "forgotten_budgets": "budgets of quotas were forgotten: see the bounds in docs/quotas.md",
    "refused_groups": "new groups were refused: see group.max.count",
    "refused_members": "requests of members were refused: see group.members.max, group.max.bytes,"
    " group.members.max.bytes",
    "forgotten_member_ids": "ids of members that had not joined were forgotten: see group.pending.members.max",
    "dropped_records": "delayed records could not be delivered and were dropped: see the log of the services process",
    "untraced_records": "records were not traced, because too many in a second ask for it: see docs/trace.md",
    "dropped_steps": "steps of traces were not sent to trace.otlp.endpoint: see the log of the services process",
    "unaudited_commits": "commits were not audited, because a partition has more groups than the audit can follow",
    "refused_transactional_ids": "new transactional ids were refused: see transactional.id.max.count",
}
"""Name of the counter → what `appliance status` says behind its number."""


def named_counters(role: str, counters: Sequence[int]) -> dict[str, int]:
    """The counters of a role (`ioproc 0.0`) by their names."""
    names = COUNTER_NAMES.get(role.partition(" ")[0], ())
    return {name: value for name, value in zip(names, counters, strict=False) if name is not None}
