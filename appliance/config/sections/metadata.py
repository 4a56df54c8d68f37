"""The metadata store."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.option import check_fields, option
from appliance.config.zookeeper_address import split_connect
from appliance.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """Where topics, leaders and settings are kept."""

    store: str = option(
        "embedded",
        "metadata.store",
        choices=("embedded", "zookeeper"),
        doc="The place where the appliance keeps topics, leaders and settings. `embedded` means a file in "
        "data.dir, and `zookeeper` means a ZooKeeper ensemble.",
    )
    zookeeper_connect: str | None = option(
        None,
        "zookeeper.connect",
        doc="Addresses of the ZooKeeper ensemble, in the form host:port,host:port/chroot. Each "
        "appliance needs its own chroot. If the chroot does not exist, the appliance creates it.",
    )
    zookeeper_session_timeout_ms: int = option(
        18_000,
        "zookeeper.session.timeout.ms",
        unit="ms",
        minimum=1000,
        maximum=600_000,
        doc="Time without contact after which ZooKeeper ends the controller's session. Another "
        "controller may then replace this controller.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        connect = self.zookeeper_connect
        if self.store == "zookeeper" and connect is None:
            raise ConfigurationError("metadata.store = zookeeper: zookeeper.connect must be set")
        if self.store != "zookeeper" and connect is not None:
            raise ConfigurationError("zookeeper.connect is set: metadata.store must be zookeeper")
        if connect is not None:
            try:
                split_connect(connect)
            except ValueError as error:
                raise ConfigurationError(f"zookeeper.connect = {error}") from None
