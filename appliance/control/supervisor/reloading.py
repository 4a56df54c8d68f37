"""What a reload changes: the configuration file against what the appliance runs with.

| setting | on a reload |
|---|---|
| may change at run time (`config.dynamic`) | counts at once, in all processes |
| any other that differs | one line names it; it counts after a restart |
| certificates, the password file | not here: they are read again when their files change |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from appliance.channels.supervision import Reloaded
from appliance.channels.wiring import Wiring
from appliance.config import Settings
from appliance.config.dynamic import DYNAMIC_BROKER_CONFIGS, PER_SLOT, of_file
from appliance.control.systemd import Notifier
from appliance.errors import OperatorFault

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reload:
    """What a file says now. `configs`: of all settings that may change at run time, name → text. `changed` and
    `waiting` name those that are different: the first count now, the second after a restart."""

    configs: Mapping[str, str]
    changed: tuple[str, ...]
    waiting: tuple[str, ...]

    def told(self) -> str:
        """What changes, for the log."""
        applied = ", ".join(f"{name} = {self.configs.get(name, 'default')}" for name in self.changed)
        text = applied or "no setting that can change at run time is different"
        if self.waiting:
            text += f"; restart for {', '.join(self.waiting)}"
        return text


def reloaded(running: Settings, before: Mapping[str, str] | None, now: Settings) -> Reload:
    """Compare the settings that run with those of the file.

    Args:
        running: what the appliance was started with.
        before: `configs` of the reload before; None if there was none.
        now: what file and flags say now.
    """
    old, new = of_file(running) if before is None else before, of_file(now)
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    waiting = sorted(
        name
        for name in {*running.configured, *now.configured}
        if (name not in DYNAMIC_BROKER_CONFIGS or name in PER_SLOT)
        and running.configured.get(name) != now.configured.get(name)
    )
    return Reload(new, tuple(changed), tuple(waiting))


def read_again(
    wiring: Wiring, settings_now: Callable[[], Settings] | None, notifier: Notifier
) -> tuple[Wiring, Reloaded | None]:
    """Read the configuration again. A file that cannot be used changes nothing, and the log and systemd say why.

    Args:
        wiring: of the instance.
        settings_now: reads file and flags; None: there is no file.
        notifier: hears that the service reloads, and that it is done.

    Returns:
        the wiring for processes that start from now on, and what the controller is sent (None: nothing).
    """
    notifier.reloading(time.monotonic_ns())
    try:
        if settings_now is None:
            raise OperatorFault("there is no configuration file (serve --config)")
        found = reloaded(wiring.settings, wiring.file_configs, settings_now())
    except Exception as fault:  # such as RecursionError of a nested array: it must not stop the appliance
        _logger.error("configuration not read again, nothing was changed: %s", fault)
        notifier.ready(f"serving; configuration not read again: {fault}")
        return wiring, None
    _logger.info("configuration read again: %s", found.told())
    notifier.ready("serving")
    return replace(wiring, file_configs=found.configs), Reloaded(
        dict(found.configs)
    ) if found.changed else None
