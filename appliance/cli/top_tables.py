"""What `appliance top` shows, as texts: a headline, and tables of processes, topics and groups."""

from __future__ import annotations

from typing import Any, Final

from appliance.cli.output import shown_bytes

PROCESS_HEADINGS: Final = (
    "PROCESS", "PID", "STATE", "IDLE", "CPU", "MEMORY",
    "REQUESTS/S", "IN/S", "OUT/S", "CONNECTIONS", "QUEUE", "RESTARTS",
)  # fmt: skip
PROCESS_RIGHT: Final = tuple(name for name in PROCESS_HEADINGS if name not in ("PROCESS", "STATE"))


def headline(told: dict[str, Any]) -> str:
    """Return the first line of a picture."""
    if told["error"] is not None:
        parts = [f"the broker does not answer: {told['error']}"]
    else:
        parts = [
            _counted(told["brokers"], "broker"),
            f"{_counted(told['topics'], 'topic')}, {_counted(told['partitions'], 'partition')}",
        ]
        if told["under_replicated_partitions"]:
            parts.append(f"{told['under_replicated_partitions']} under-replicated")
        if told["unavailable_partitions"]:
            parts.append(f"{told['unavailable_partitions']} without a leader")
    totals = told["totals"]
    if totals["requests_per_second"] is not None:
        parts.append(
            f"{totals['requests_per_second']:,.0f} requests/s, in {_rate(totals['bytes_in_per_second'])},"
            f" out {_rate(totals['bytes_out_per_second'])}, {totals['connections']:.0f} connections"
        )
    return "; ".join(parts)


def process_table(told: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return headings and rows of the processes."""
    rows: list[tuple[object, ...]] = [
        (
            each["role"],
            each["pid"],
            each["state"],
            _share(each["idle"]),
            _share(each["cpu"]),
            None if each["resident_bytes"] is None else shown_bytes(each["resident_bytes"]),
            _number(each["requests_per_second"]),
            _rate(each["bytes_in_per_second"]),
            _rate(each["bytes_out_per_second"]),
            each["connections"],
            each["queue"],
            each["restarts"],
        )
        for each in told["processes"]
    ]
    return PROCESS_HEADINGS, rows


def topic_table(told: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return headings and rows of the topics."""
    return ("TOPIC", "PARTITIONS", "RECORDS/S"), [
        (each["topic"], each["partitions"], _number(each["records_per_second"]))
        for each in told["topic_rates"]
    ]


def group_table(told: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return headings and rows of the groups."""
    return ("GROUP", "PARTITIONS", "LAG", "RECORDS/S"), [
        (each["group"], each["partitions"], f"{each['lag']:,}", _number(each["records_per_second"]))
        for each in told["group_lags"]
    ]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{shown_bytes(value)}/s"
