"""The families of `/metrics` of what runs only with an option: quotas, the audit journal, services, the console."""

from __future__ import annotations

from appliance.channels.roles import RoleKind
from appliance.ipc import process_table
from appliance.metrics import families as names
from appliance.metrics.exposition import FamilyWriter
from appliance.metrics.snapshot import Snapshot
from appliance.metrics.writing import MS_PER_S, counted, shown, write_histogram, write_one


def write_guards(page: FamilyWriter, now: Snapshot) -> None:
    """Write what quotas, the audit journal and the keys of the identity provider have done."""
    network, auditor, keys = RoleKind.NETPROC, RoleKind.AUDITOR, RoleKind.KEYS
    write_one(page, names.THROTTLED_ANSWERS, counted(now, network, "throttled_answers"))
    write_one(page, names.THROTTLE_TIME, counted(now, network, "throttled_ms") / MS_PER_S)
    write_one(page, names.THROTTLED_SESSIONS, shown(now, network, "throttled_sessions"))
    write_one(page, names.FORGOTTEN_BUDGETS, counted(now, network, "forgotten_budgets"))
    if now.of_kind(auditor):
        page.gauge(
            names.AUDIT_ENTRIES,
            [
                (counted(now, auditor, "written_entries"), ("file",)),
                (counted(now, auditor, "appended_entries"), ("topic",)),
            ],
        )
        lost = ("lost_entries", "lost_topic_entries")
        write_one(
            page,
            names.LOST_AUDIT_ENTRIES,
            sum(counted(now, auditor, name) for name in lost) + counted(now, network, "lost_audit_entries"),
        )
    if now.of_kind(keys):
        fetches, failed = counted(now, keys, "fetches"), counted(now, keys, "failed_fetches")
        write_one(page, names.IDENTITY_KEYS, shown(now, keys, "keys"))
        page.gauge(names.IDENTITY_KEY_FETCHES, [(max(0, fetches - failed), ("good",)), (failed, ("failed",))])
        write_one(page, names.UNKNOWN_IDENTITY_KEYS, counted(now, keys, "unknown_keys"))


def write_services(page: FamilyWriter, now: Snapshot) -> None:
    """Write delayed delivery, retries, message audit and message trace, if there are services processes."""
    services, network = RoleKind.SERVICES, RoleKind.NETPROC
    processes = now.of_kind(services)
    if not processes:
        return
    for family, kind, name in (
        (names.DELAYED_STORED, network, "delayed_records"),
        (names.DELAYED_DELIVERED, services, "delivered_records"),
        (names.DELAYED_CANCELLED, services, "cancelled_records"),
        (names.DELAYED_DROPPED, services, "dropped_records"),
        (names.DELAYED_REPEATED, services, "repeated_records"),
        (names.HANDED_BACK, network, "handed_back_records"),
        (names.DEAD_LETTERS, network, "dead_letters"),
        (names.AUDITED_RECORDS, services, "audited_records"),
        (names.UNAUDITED_COMMITS, services, "unaudited_commits"),
        (names.LOST_OBSERVATIONS, services, "lost_observations"),
        (names.TRACED_RECORDS, services, "traced_records"),
        (names.UNTRACED_RECORDS, services, "untraced_records"),
        (names.DROPPED_STEPS, services, "dropped_steps"),
    ):
        write_one(page, family, counted(now, kind, name))
    page.begin(names.DELAYED_LATENESS)
    write_histogram(page, now.lateness)
    write_one(page, names.DELAYED_WAITING, shown(now, services, "waiting_records"))
    write_one(page, names.DELAYED_OPEN, shown(now, services, "waiting_deliveries"))
    overdue_ms = [each.counters["overdue_ms"] for each in processes if each.usage.is_running]
    write_one(page, names.DELAYED_OVERDUE, max(overdue_ms, default=0) / MS_PER_S)


def write_console(page: FamilyWriter, now: Snapshot) -> None:
    """Write what the console has served, if there is one."""
    console = RoleKind.CONSOLE
    if not (processes := now.of_kind(console)):
        return
    write_one(page, names.CONSOLE_SESSIONS, shown(now, console, "sessions"))
    write_one(page, names.CONSOLE_STREAMS, shown(now, console, "streams"))
    write_one(page, names.CONSOLE_REQUESTS, sum(each.totals[process_table.REQUESTS] for each in processes))
    write_one(page, names.CONSOLE_REFUSED, counted(now, console, "refused_requests"))
    write_one(page, names.CONSOLE_REFUSED_LOGINS, counted(now, console, "refused_logins"))
    write_one(page, names.CONSOLE_ENDED, counted(now, console, "ended_connections"))
