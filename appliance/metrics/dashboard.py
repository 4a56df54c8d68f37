"""Writes the Grafana dashboard: `python -m appliance.metrics.dashboard FILE`. A test fails when the file is stale.

The dashboard is data for Grafana, so the package contains the written file (`share/dashboard.json`), and this module is
how it is changed: a row a subject, a panel a question that an operator asks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

SHARE: Final = Path(__file__).parent / "share"
FILE: Final = SHARE / "dashboard.json"

_COLUMNS: Final = 24
_WIDTH: Final = 8
_HEIGHT: Final = 7
_STAT_WIDTH: Final = 4
_STAT_HEIGHT: Final = 4
_RATE: Final = "$__rate_interval"

Query = tuple[str, str]
"""PromQL and legend."""


def _rates(names: dict[str, str]) -> tuple[Query, ...]:
    """Return the rates of counters: name without prefix → legend."""
    return tuple((f"sum(rate(appliance_{name}_total[{_RATE}]))", legend) for name, legend in names.items())


def _quantile(share: float, name: str, *, by: str = "", where: str = "") -> str:
    """Return the quantile of a histogram.

    Args:
        share: 0 to 1.
        by: labels that stay, each with a comma before it.
        where: what selects the series, in braces.
    """
    return f"histogram_quantile({share}, sum by (le{by}) (rate(appliance_{name}_bucket{where}[{_RATE}])))"


_STATS: Final[tuple[tuple[str, str, str], ...]] = (
    ("Controllers", "sum(appliance_controller_active)", "none"),
    ("Offline partitions", "sum(appliance_offline_partitions)", "none"),
    ("Under-replicated", "sum(appliance_under_replicated_partitions)", "none"),
    ("Below min.insync.replicas", "sum(appliance_under_min_isr_partitions)", "none"),
    ("Processes that run", "sum(appliance_process_up)", "none"),
    ("Failed log directories", "sum(appliance_failed_log_directories)", "none"),
)

_ROWS: Final[tuple[tuple[str, tuple[tuple[str, str, tuple[Query, ...]], ...]], ...]] = (
    (
        "Traffic",
        (
            (
                "Bytes of records",
                "Bps",
                (
                    (f"sum(rate(appliance_produced_bytes_total[{_RATE}]))", "produced"),
                    (f"sum(rate(appliance_fetched_bytes_total[{_RATE}]))", "fetched"),
                ),
            ),
            (
                "Records produced",
                "cps",
                ((f"sum(rate(appliance_produced_records_total[{_RATE}]))", "records"),),
            ),
            ("Connections", "none", (("sum(appliance_connections)", "connections"),)),
            (
                "Busiest topics, produced",
                "Bps",
                ((f"topk(10, rate(appliance_topic_produced_bytes_total[{_RATE}]))", "{{topic}}"),),
            ),
            (
                "Busiest topics, fetched",
                "Bps",
                ((f"topk(10, rate(appliance_topic_fetched_bytes_total[{_RATE}]))", "{{topic}}"),),
            ),
            (
                "Largest topics",
                "bytes",
                (("topk(10, appliance_topic_log_bytes)", "{{topic}}"),),
            ),
        ),
    ),
    (
        "Requests",
        (
            ("Requests", "reqps", ((f"sum by (api) (rate(appliance_requests_total[{_RATE}]))", "{{api}}"),)),
            (
                "Time of Produce",
                "s",
                tuple(
                    (
                        _quantile(share, "request_duration_seconds", where='{api="Produce"}'),
                        f"p{100 * share:g}",
                    )
                    for share in (0.5, 0.99, 0.999)
                ),
            ),
            *(
                (
                    f"Stages of {api}, p99",
                    "s",
                    (
                        (
                            _quantile(
                                0.99,
                                "request_stage_duration_seconds",
                                by=", stage",
                                where=f'{{api="{api}"}}',
                            ),
                            "{{stage}}",
                        ),
                    ),
                )
                for api in ("Produce", "Fetch")
            ),
            (
                "Mean time by stage",
                "s",
                (
                    (
                        f"sum by (api, stage) (rate(appliance_request_stage_duration_seconds_sum[{_RATE}]))"
                        f" / sum by (api, stage) (rate(appliance_request_stage_duration_seconds_count[{_RATE}]))",
                        "{{api}} {{stage}}",
                    ),
                ),
            ),
            (
                "Errors of Produce and Fetch",
                "cps",
                (
                    (
                        f"sum by (api, error) (rate(appliance_partition_errors_total[{_RATE}]))",
                        "{{api}} {{error}}",
                    ),
                ),
            ),
            (
                "Waiting",
                "none",
                (
                    ("appliance_purgatory_waiting_fetches", "fetches"),
                    ("appliance_purgatory_held_answers", "held answers"),
                ),
            ),
            (
                "Throttled by quotas",
                "none",
                (
                    ("appliance_throttled_sessions", "sessions"),
                    (f"rate(appliance_throttled_answers_total[{_RATE}])", "answers a second"),
                ),
            ),
        ),
    ),
    (
        "Replication",
        (
            ("Led partitions", "none", (("appliance_led_partitions", "slot {{broker}}"),)),
            (
                "Under-replicated partitions",
                "none",
                (("appliance_under_replicated_partitions", "slot {{broker}}"),),
            ),
            (
                "Changes of in-sync replicas",
                "cps",
                (
                    (f"rate(appliance_isr_shrinks_total[{_RATE}])", "shrinks"),
                    (f"rate(appliance_isr_expansions_total[{_RATE}])", "expansions"),
                ),
            ),
        ),
    ),
    (
        "Groups and transactions",
        (
            (
                "Lag",
                "none",
                (("topk(20, sum by (group, topic) (appliance_group_lag_records))", "{{group}} {{topic}}"),),
            ),
            (
                "Lag in time",
                "s",
                (("topk(20, max by (group, topic) (appliance_group_lag_seconds))", "{{group}} {{topic}}"),),
            ),
            ("Members", "none", (("topk(20, appliance_group_members)", "{{group}}"),)),
            (
                "Transactions",
                "none",
                (
                    ("appliance_transactional_ids", "transactional ids"),
                    ("appliance_open_transactions", "open"),
                    ("appliance_transactions_without_markers", "without markers"),
                ),
            ),
        ),
    ),
    (
        "Processes",
        (
            (
                "Idle share",
                "percentunit",
                (
                    ("appliance_network_idle_ratio", "network processes"),
                    ("appliance_worker_idle_ratio", "I/O workers"),
                ),
            ),
            (
                "Processor time",
                "percentunit",
                ((f"rate(appliance_process_cpu_seconds_total[{_RATE}])", "{{process}}"),),
            ),
            (
                "Memory, shared pages divided (PSS)",
                "bytes",
                (("appliance_process_proportional_bytes", "{{process}}"),),
            ),
            ("Open files", "none", (("appliance_process_open_files", "{{process}}"),)),
            (
                "Restarts",
                "none",
                ((f"increase(appliance_process_restarts_total[{_RATE}])", "{{process}}"),),
            ),
            ("Waiting for a process", "none", (("appliance_process_queue_depth", "{{process}}"),)),
        ),
    ),
    (
        "Logs and disks",
        (
            (
                "Free space",
                "percentunit",
                (
                    (
                        "appliance_disk_free_bytes / appliance_disk_size_bytes",
                        "slot {{broker}} {{directory}}",
                    ),
                ),
            ),
            (
                "Logs",
                "bytes",
                (("appliance_log_bytes", "slot {{broker}}"),),
            ),
            ("Segments", "none", (("appliance_log_segments", "slot {{broker}}"),)),
            (
                "Flushes",
                "ops",
                (
                    (
                        f"sum by (broker) (rate(appliance_log_flush_duration_seconds_count[{_RATE}]))",
                        "slot {{broker}}",
                    ),
                ),
            ),
            (
                "Time of a flush, p99",
                "s",
                ((_quantile(0.99, "log_flush_duration_seconds", by=", broker"), "slot {{broker}}"),),
            ),
            (
                "Written by processes",
                "Bps",
                ((f"rate(appliance_process_disk_written_bytes_total[{_RATE}])", "{{process}}"),),
            ),
            (
                "Read from disks",
                "Bps",
                ((f"rate(appliance_process_disk_read_bytes_total[{_RATE}])", "{{process}}"),),
            ),
            (
                "Compaction",
                "Bps",
                _rates({"cleaner_freed_bytes": "freed"}),
            ),
            (
                "Uncleanable partitions",
                "none",
                (("appliance_cleaner_uncleanable_partitions", "partitions"),),
            ),
        ),
    ),
    (
        "Delayed delivery, retries and dead letters (services.processes)",
        (
            (
                "Delayed records",
                "cps",
                _rates({"delayed_stored_records": "stored", "delayed_delivered_records": "delivered"}),
            ),
            ("Waiting", "none", (("appliance_delayed_waiting_records", "records"),)),
            (
                "Lateness",
                "s",
                (
                    (_quantile(0.5, "delayed_lateness_seconds"), "p50"),
                    (_quantile(0.99, "delayed_lateness_seconds"), "p99"),
                    ("appliance_delayed_overdue_seconds", "overdue now"),
                ),
            ),
            (
                "Retries",
                "cps",
                _rates({"retry_handed_back_records": "handed back", "retry_dead_letters": "dead letters"}),
            ),
            (
                "Not delivered",
                "cps",
                _rates({"delayed_dropped_records": "dropped", "delayed_cancelled_records": "cancelled"}),
            ),
            (
                "Audit and trace",
                "cps",
                _rates(
                    {
                        "message_audit_records": "audited",
                        "trace_records": "traced",
                        "trace_untraced_records": "not traced",
                        "message_audit_lost_observations": "lost observations",
                    }
                ),
            ),
        ),
    ),
    (
        "Clients, console and exports (each with its option)",
        (
            ("Clients that push metrics", "none", (("appliance_client_telemetry_clients", "clients"),)),
            (
                "Pushes of clients",
                "cps",
                (
                    (
                        f"sum by (outcome) (rate(appliance_client_telemetry_pushes_total[{_RATE}]))",
                        "{{outcome}}",
                    ),
                ),
            ),
            (
                "Latency that producers see",
                "ms",
                (
                    (
                        'topk(10, appliance_client_metric{metric="org.apache.kafka.producer.request.latency.avg"})',
                        "{{client_id}}",
                    ),
                ),
            ),
            (
                "Console",
                "none",
                (
                    ("appliance_console_sessions", "sessions"),
                    ("appliance_console_streams", "streams"),
                ),
            ),
            (
                "Requests to a collector (OTLP)",
                "cps",
                (
                    (
                        f"sum by (outcome) (rate(appliance_metrics_otlp_requests_total[{_RATE}]))",
                        "{{outcome}}",
                    ),
                ),
            ),
            (
                "Pages of metrics",
                "s",
                (
                    ("appliance_metrics_page_seconds", "time to build a page"),
                    ("appliance_metrics_group_round_age_seconds", "age of the groups"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    for index, (title, query, unit) in enumerate(_STATS):
        place = {"h": _STAT_HEIGHT, "w": _STAT_WIDTH, "x": index * _STAT_WIDTH, "y": 0}
        panels.append(
            _panel(len(panels) + 1, "stat", title, unit=unit, queries=((query, title),), place=place)
        )
    y = _STAT_HEIGHT
    for title, row in _ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": y},
            }
        )
        y += 1
        for index, (name, unit, queries) in enumerate(row):
            line, column = divmod(index, _COLUMNS // _WIDTH)
            place = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": y + line * _HEIGHT}
            panels.append(
                _panel(len(panels) + 1, "timeseries", name, unit=unit, queries=queries, place=place)
            )
        y += -(-len(row) * _WIDTH // _COLUMNS) * _HEIGHT
    return {
        "uid": "appliance",
        "title": "Appliance",
        "tags": ["appliance", "kafka"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            ]
        },
        "panels": panels,
    }


def _panel(
    number: int, kind: str, title: str, *, unit: str, queries: tuple[Query, ...], place: dict[str, int]
) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": kind,
        "title": title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }


def text() -> str:
    """Return the file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """Write the dashboard to the file named in `arguments`, or to the package."""
    Path(arguments[0] if arguments else FILE).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
