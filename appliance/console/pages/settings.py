"""Settings of the slots, and where each comes from; those that can change while the broker runs are changed here."""

from __future__ import annotations

from appliance.console.pages.topics import SOURCES, altered, described
from appliance.console.server import Response
from appliance.console.visit import Visit
from appliance.protocol.apis.describe_configs import ConfigSource, ResourceType

OF_BROKERS = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def settings(visit: Visit) -> Response:
    """The settings of one slot."""
    slot = visit.number("slot", 0, maximum=max(visit.link.slots))
    wanted = visit.asked("q").strip().lower()
    is_short = visit.asked("set") == "1"
    entries = [
        each
        for each in described(visit, ResourceType.BROKER, str(slot))
        if wanted in each.name.lower()
        and not (is_short and each.config_source == ConfigSource.DEFAULT_CONFIG)
    ]
    return visit.page(
        "settings.html",
        entries=entries,
        slot=slot,
        slots=visit.link.slots,
        q=visit.asked("q"),
        is_short=is_short,
        sources=SOURCES,
        of_brokers=OF_BROKERS,
        of_all=ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        edit=visit.asked("edit"),
    )


def alter_setting(visit: Visit) -> Response:
    """Set a setting of all slots or of one, or return it to what it would be without."""
    slot = visit.number("slot", 0, maximum=max(visit.link.slots))
    is_of_all = visit.asked("scope", "all") == "all"
    altered(
        visit,
        ResourceType.BROKER,
        "" if is_of_all else str(slot),
        visit.asked("key"),
        operation=visit.asked("operation"),
        value=visit.asked("value"),
    )
    return visit.back_to("/settings", slot=str(slot), q=visit.asked("key"))
