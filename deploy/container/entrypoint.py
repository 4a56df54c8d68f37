"""The first program of the container: turns environment variables into options, and becomes the appliance.

    KAFKA_NUM_PARTITIONS=3        →  num.partitions=3             what Kafka's images take
    APPLIANCE_SLOTS=3             →  slots=3                      any option of the appliance
    KAFKA_ADVERTISED_LISTENERS    →  advertised.listeners         listeners of KRaft controllers are taken out

The rule for names is that of Kafka's images: the prefix goes, letters become small, `___` becomes `-`, `__` becomes
`_`, and `_` becomes `.`. A Kafka setting that means nothing here is named on standard error and left out. A setting
that nobody knows is passed on, and the appliance refuses it with the nearest name. Source: the README of the image
apache/kafka. Variables that Kubernetes makes for a service named `kafka` or `appliance` (service links, such as
KAFKA_PORT=tcp://10.0.0.7:9092) are no settings. Standard library only, besides the appliance itself.

With other arguments than `serve` it runs that command of the appliance: `… log-appliance topics list -b kafka:9092`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from typing import Final

DATA_DIR: Final = "/data"
HOST: Final = "0.0.0.0"

OF_KRAFT: Final = frozenset(
    {
        "broker.id",
        "cluster.id",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "inter.broker.listener.name",
        "log.dir",
        "log.dirs",
        "node.id",
        "process.roles",
    }
)
"""Settings of which the appliance has no need: its slots are numbered, and its data are in /data."""

OF_THE_IMAGE: Final = frozenset(
    {"heap.opts", "opts", "jvm.performance.opts", "jmx.port", "jmx.opts", "log4j.opts"}
)
"""Variables for scripts of Kafka's images."""


SERVICE_LINK: Final = re.compile(
    r"(KAFKA|APPLIANCE)(_.+)?_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""Source: "Environment variables" in the page "Service" of Kubernetes' documentation."""
_PROXY: Final = re.compile(r"(tcp|udp|sctp)://")


def is_service_link(variable: str, text: str) -> bool:
    """Return whether Kubernetes made a variable for a service; `KAFKA_PORT` is one only with a URL in it."""
    return bool(
        SERVICE_LINK.fullmatch(variable) or (variable.endswith("_PORT") and _PROXY.match(text)),
    )


def option_name(variable: str, prefix: str) -> str:
    """Return the option that a variable names: `KAFKA_A__B_C___D` is `a_b.c-d`."""
    name = variable.removeprefix(prefix).lower()
    return name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def options(environment: Mapping[str, str], kafkas: Collection[str], own: Collection[str]) -> dict[str, str]:
    """Return option → value.

    Args:
        environment: the variables.
        kafkas: all names of Kafka's broker settings.
        own: all names that the appliance takes.
    """
    of_kafka, of_appliance = (
        {
            option_name(name, prefix): text
            for name, text in environment.items()
            if name.startswith(prefix) and not is_service_link(name, text)
        }
        for prefix in ("KAFKA_", "APPLIANCE_")
    )
    controllers = {
        name.strip() for name in of_kafka.get("controller.listener.names", "").split(",") if name.strip()
    }
    found = {}
    for name, text in sorted(of_kafka.items()):
        if name in OF_KRAFT or name in OF_THE_IMAGE or (name in kafkas and name not in own):
            print(f"appliance: KAFKA setting {name} has no meaning here and was left out", file=sys.stderr)
        else:
            found[name] = text
    for name in ("listeners", "advertised.listeners", "listener.security.protocol.map"):
        if name in found:
            found[name] = _without(found[name], controllers, is_map=name.endswith("map"))
    if "listeners" in found:
        found["listeners"] = found["listeners"].replace("://:", f"://{HOST}:")
    elif "listeners" not in of_appliance:
        for name in ("advertised.listeners", "listener.security.protocol.map"):
            if name in found:
                raise SystemExit(f"appliance: {name} has no effect without KAFKA_LISTENERS")
        found.setdefault("host", HOST)
    found.update(of_appliance)
    found.setdefault("data.dir", DATA_DIR)
    return found


def _without(text: str, controllers: Collection[str], *, is_map: bool) -> str:
    """Return a list of listeners without those of controllers; of the map, names without a listener stay."""
    separator = ":" if is_map else "://"
    entries = (entry.strip() for entry in text.split(","))
    return ",".join(entry for entry in entries if entry and entry.split(separator)[0] not in controllers)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        from appliance.config.kafka_settings import kafka_broker_settings
        from appliance.config.loading import ALIASES
        from appliance.config.settings import option_declarations
        from appliance.config.topic_defaults import BROKER_WIDE

        own = {*option_declarations(), *BROKER_WIDE, *ALIASES}
        for name, text in options(os.environ, kafka_broker_settings(), own).items():
            arguments += ["--set", f"{name}={text}"]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "appliance", *arguments])


if __name__ == "__main__":
    main()
