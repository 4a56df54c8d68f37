"""Which level each kind of process logs from, of all that may say it."""

from __future__ import annotations

from appliance.channels.roles import RoleKind
from appliance.config import load_settings
from appliance.config.dynamic import DYNAMIC_BROKER_CONFIGS, FILE, log_levels
from appliance.config.loggers import KINDS, LEVEL, LEVEL_OF_KIND
from appliance.config.sections.logging import FORMATS, LEVELS
from appliance.journal import FORMATS as KNOWN_FORMATS
from appliance.journal import LEVELS as KNOWN_LEVELS

FROM_FILE = load_settings(None, {LEVEL: "WARN"})


def test_first_that_says_something_wins() -> None:
    assert log_levels(FROM_FILE, {}) == {"root": "WARN"}
    assert log_levels(FROM_FILE, {FILE: {LEVEL: "ERROR"}}) == {"root": "ERROR"}
    assert log_levels(FROM_FILE, {FILE: {}}) == {"root": "INFO"}
    stored = {"0": {"log.level.netproc": "DEBUG"}, "": {LEVEL: "INFO", "log.level.ioproc": "ERROR"}}
    assert log_levels(FROM_FILE, stored) == {"root": "INFO", "ioproc": "ERROR", "netproc": "DEBUG"}


def test_with_several_slots_only_what_is_set_on_all_counts() -> None:
    three = load_settings(None, {"slots": "3"})
    assert log_levels(three, {"0": {LEVEL: "DEBUG"}}) == {"root": "INFO"}


def test_every_kind_of_process_has_a_logger() -> None:
    assert set(KINDS) == set(map(str, RoleKind))
    assert LEVEL_OF_KIND.keys() <= DYNAMIC_BROKER_CONFIGS.keys()


def test_options_and_log_know_the_same_levels_and_formats() -> None:
    assert tuple(KNOWN_LEVELS) == LEVELS
    assert KNOWN_FORMATS == FORMATS
