"""Each alert fires on the series that it is for, and not on healthy ones: promtool evaluates the rules over an hour."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from appliance.metrics import dashboard
from tests.support.promql import rules

REPOSITORY: Final = Path(__file__).parents[2]
PROMTOOL: Final = REPOSITORY / ".cache" / "prometheus" / "promtool"
ALERTS: Final = dashboard.SHARE / "alerts.yml"
AT: Final = "50m"
MINUTES: Final = 60
STUCK: Final = {
    'appliance_group_stable_lag_records{group="g",topic="t"}': f"100+5x{MINUTES}",
    'appliance_topic_produced_records_total{topic="t"}': f"0+50x{MINUTES}",
}

# Name of the alert → series → values, one a minute: on which it fires, and on which it does not.
FIRES: Final[Mapping[str, Mapping[str, str]]] = {
    "ApplianceDown": {'up{job="appliance",instance="h"}': "0"},
    "ApplianceNoController": {"appliance_controller_active": "0"},
    "ApplianceOfflinePartitions": {"appliance_offline_partitions": "2"},
    "ApplianceFailedLogDirectory": {'appliance_failed_log_directories{broker="1"}': "1"},
    "ApplianceLostRecords": {'appliance_lost_partitions_total{broker="0"}': "0+0x30 1+0x30"},
    "ApplianceUncleanElection": {"appliance_unclean_leader_elections_total": "0+0x30 1+0x30"},
    "ApplianceUnderMinIsr": {'appliance_under_min_isr_partitions{broker="0"}': "1"},
    "ApplianceUnderReplicated": {'appliance_under_replicated_partitions{broker="0"}': "3"},
    "ApplianceIsrChanges": {"appliance_isr_shrinks_total": f"0+30x{MINUTES}"},
    "ApplianceProcessRestarts": {'appliance_process_restarts_total{process="netproc 0"}': f"0+1x{MINUTES}"},
    "ApplianceNetworkBusy": {"appliance_network_idle_ratio": "0.1"},
    "ApplianceWorkersBusy": {"appliance_worker_idle_ratio": "0.1"},
    "ApplianceDiskFull": {
        'appliance_disk_free_bytes{broker="0",directory="/d"}': "5",
        'appliance_disk_size_bytes{broker="0",directory="/d"}': "100",
    },
    "ApplianceProduceErrors": {
        'appliance_partition_errors_total{api="Produce",error="CORRUPT_MESSAGE"}': f"0+600x{MINUTES}"
    },
    "ApplianceGroupStuck": STUCK,
    "ApplianceTransactionsWithoutMarkers": {"appliance_transactions_without_markers": "1"},
    "ApplianceAuditEntriesLost": {"appliance_lost_audit_entries_total": f"0+1x{MINUTES}"},
    "ApplianceSlowFlushes": {
        'appliance_log_flush_duration_seconds_bucket{broker="0",le="1.0"}': f"0+9x{MINUTES}",
        'appliance_log_flush_duration_seconds_bucket{broker="0",le="10.0"}': f"0+10x{MINUTES}",
        'appliance_log_flush_duration_seconds_bucket{broker="0",le="+Inf"}': f"0+10x{MINUTES}",
    },
    "ApplianceUncleanablePartitions": {"appliance_cleaner_uncleanable_partitions": "1"},
    "ApplianceDelayedOverdue": {"appliance_delayed_overdue_seconds": "90"},
    "ApplianceDelayedDropped": {"appliance_delayed_dropped_records_total": f"0+1x{MINUTES}"},
    "ApplianceDeadLetters": {"appliance_retry_dead_letters_total": f"0+1x{MINUTES}"},
    "ApplianceAuditIncomplete": {"appliance_message_audit_lost_observations_total": f"0+1x{MINUTES}"},
    "ApplianceMetricsNotSent": {'appliance_metrics_otlp_requests_total{outcome="failed"}': f"0+1x{MINUTES}"},
    "ApplianceBackupFailed": {'appliance_backup_succeeded{target="/b"}': "0"},
    "ApplianceBackupOld": {'appliance_backup_last_success_timestamp_seconds{target="/b"}': "-200000"},
    "ApplianceConsoleLogins": {"appliance_console_refused_logins_total": f"0+60x{MINUTES}"},
}
QUIET: Final[Mapping[str, Mapping[str, str]]] = {
    **{name: dict.fromkeys(found, "1") for name, found in FIRES.items()},
    **{
        name: dict.fromkeys(FIRES[name], "0")
        for name in (
            *("ApplianceOfflinePartitions", "ApplianceFailedLogDirectory", "ApplianceUnderMinIsr"),
            *("ApplianceUnderReplicated", "ApplianceTransactionsWithoutMarkers"),
            *("ApplianceUncleanablePartitions",),
        )
    },
    "ApplianceGroupStuck": STUCK
    | {'appliance_group_stable_lag_records{group="g",topic="t"}': f"1000-5x{MINUTES}"},
    "ApplianceSlowFlushes": {
        'appliance_log_flush_duration_seconds_bucket{broker="0",le="1.0"}': f"0+10x{MINUTES}",
        'appliance_log_flush_duration_seconds_bucket{broker="0",le="+Inf"}': f"0+10x{MINUTES}",
    },
}
"""Counters that do not grow, gauges that are as they should be."""


@pytest.fixture(scope="module")
def promtool() -> Path:
    subprocess.run([REPOSITORY / "scripts" / "install-prometheus.sh"], check=True, capture_output=True)
    return PROMTOOL


def case(name: str, series: Mapping[str, str], *, fires: bool) -> dict[str, object]:
    values = {each: text if "x" in text else f"{text}+0x{MINUTES}" for each, text in series.items()}
    return {
        "name": f"{name} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": each, "values": text} for each, text in values.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": AT,
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


def said(promtool: Path, directory: Path, cases: list[dict[str, object]]) -> subprocess.CompletedProcess[str]:
    file = directory / "cases.yml"
    content = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}
    file.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML, too
    return subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)


def test_every_alert_fires_on_what_it_is_for_and_on_nothing_healthy(promtool: Path, tmp_path: Path) -> None:
    assert set(FIRES) == {rule["alert"] for rule in rules(ALERTS)}
    cases = [case(name, found, fires=True) for name, found in FIRES.items()]
    cases += [case(name, found, fires=False) for name, found in QUIET.items()]
    found = said(promtool, tmp_path, cases)
    assert found.returncode == 0, found.stdout + found.stderr


def test_an_alert_that_does_not_fire_is_found(promtool: Path, tmp_path: Path) -> None:
    found = said(promtool, tmp_path, [case("ApplianceDown", QUIET["ApplianceDown"], fires=True)])
    assert found.returncode != 0


def test_groups_of_an_old_round_are_not_stuck(promtool: Path, tmp_path: Path) -> None:
    old = STUCK | {"appliance_metrics_group_round_age_seconds": "400"}
    found = said(promtool, tmp_path, [case("ApplianceGroupStuck", old, fires=False)])
    assert found.returncode == 0, found.stdout + found.stderr
