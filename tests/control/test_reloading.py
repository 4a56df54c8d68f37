"""A reload: what of a configuration file counts at once, and what waits for a restart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from appliance.channels.wiring import Wiring
from appliance.config import BrokerConfigs, load_settings
from appliance.config.dynamic import CONNECTIONS_MAX, FILE, PRODUCER_ID_EXPIRATION_MS, of_file, shared_value
from appliance.control.supervisor.reloading import read_again, reloaded
from appliance.control.systemd import Notifier

RUNNING = load_settings(
    None,
    {
        "log.retention.ms": "1000",
        "max.connections": "50",
        "num.partitions": "2",
        "log.segment.bytes": "2000000",
    },
)


def test_what_can_change_counts_at_once_and_the_rest_is_named() -> None:
    now = load_settings(
        None, {"log.retention.ms": "2000", "num.partitions": "3", "log.segment.bytes": "2000000"}
    )
    found = reloaded(RUNNING, None, now)
    assert found.changed == ("log.retention.ms", "max.connections")
    assert found.waiting == ("num.partitions",)
    assert found.configs == {"log.retention.ms": "2000", "log.segment.bytes": "2000000"}
    assert "max.connections = default" in found.told()
    assert reloaded(RUNNING, found.configs, now).changed == ()


def test_the_file_of_now_counts_below_what_was_set_while_running() -> None:
    stored = {FILE: {"log.retention.ms": "2000"}, "": {"log.segment.bytes": "3000000"}}
    configs = BrokerConfigs.of(stored, 0)
    assert configs.topic_defaults(RUNNING) == {"retention.ms": "2000", "segment.bytes": "3000000"}
    assert shared_value(RUNNING, stored, CONNECTIONS_MAX) == load_settings(None, {}).network.connections_max
    assert shared_value(RUNNING, {FILE: {CONNECTIONS_MAX: "7"}}, CONNECTIONS_MAX) == 7
    assert (
        shared_value(RUNNING, {FILE: {CONNECTIONS_MAX: "7"}, "": {CONNECTIONS_MAX: "8"}}, CONNECTIONS_MAX)
        == 8
    )
    assert shared_value(RUNNING, {}, CONNECTIONS_MAX) == 50
    expiring = load_settings(None, {PRODUCER_ID_EXPIRATION_MS: "5000"})
    assert BrokerConfigs.of({}, 0).log_defaults(expiring)[PRODUCER_ID_EXPIRATION_MS] == "5000"
    gone = BrokerConfigs.of({FILE: {}}, 0).log_defaults(expiring)[PRODUCER_ID_EXPIRATION_MS]
    assert gone == str(load_settings(None, {}).broker.producer_id_expiration_ms), (
        "taken out of the file: the default"
    )


def test_file_that_cannot_be_read_changes_nothing_and_does_not_end_the_supervisor(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    wiring = cast("Wiring", SimpleNamespace(settings=RUNNING, file_configs=None))
    for text in ("[" * 100_000, "a = " + "[" * 100_000, "a = " + "9" * 5_000, '"num.partitions" = "x"'):
        file.write_text(text)
        found = read_again(wiring, lambda: load_settings(file, {}), Notifier())
        assert found == (wiring, None)


def test_only_settings_that_may_change_are_published(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('"log.retention.ms" = 5\n"num.partitions" = 9\n')
    assert of_file(load_settings(file, {})) == {"log.retention.ms": "5"}
