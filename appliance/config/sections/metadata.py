"""The metadata store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

_ZOOKEEPER_HOST: Final = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_ZOOKEEPER_CONNECT: Final = re.compile(
    rf"{_ZOOKEEPER_HOST}(?:,{_ZOOKEEPER_HOST})*(?:/|(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_.-]+)+)?"
)


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """Where topics, leaders and settings are kept."""

    store: str = option(
        "embedded",
        "metadata.store",
        choices=("embedded", "zookeeper"),
        doc="Where topics, leaders and settings are kept: in a file of data.dir, or in a ZooKeeper ensemble.",
    )
    zookeeper_connect: str | None = option(
        None,
        "zookeeper.connect",
        doc="The ensemble, host:port,host:port/chroot. One appliance to a chroot; it is created where missing.",
    )
    zookeeper_session_timeout_ms: int = option(
        18_000,
        "zookeeper.session.timeout.ms",
        unit="ms",
        minimum=1000,
        maximum=600_000,
        doc="How long ZooKeeper may hear nothing of the controller before another one may take its place.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        connect = self.zookeeper_connect
        if self.store == "zookeeper" and connect is None:
            raise ConfigurationError("metadata.store = zookeeper: wants zookeeper.connect")
        if self.store != "zookeeper" and connect is not None:
            raise ConfigurationError("zookeeper.connect is set: wants metadata.store = zookeeper")
        if connect is not None and _ZOOKEEPER_CONNECT.fullmatch(connect) is None:
            raise ConfigurationError(
                f"zookeeper.connect = {connect[:100]!r}: wants host:port, more of them after commas, "
                "and a /chroot if there is one"
            )
