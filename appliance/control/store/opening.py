"""Which store the settings ask for, opened.

A data directory belongs to one store for good: its topics' ids and its cluster id are there. Asked for the
other one, it would come up empty beside the logs of topics that nobody knows.
"""

from __future__ import annotations

from appliance.clock import Clock
from appliance.config import Settings
from appliance.control.store.embedded_store import DATABASE_NAME, EmbeddedStore
from appliance.control.store.left_sessions import DIRECTORY
from appliance.control.store.metadata_store import MetadataStore
from appliance.errors import ConfigurationError


def refuse_other_store(settings: Settings) -> None:
    """Raises ConfigurationError where the data directory belongs to the store that is not asked for."""
    embedded = settings.metadata.store == "embedded"
    left_by_other = DIRECTORY if embedded else DATABASE_NAME
    if (settings.data_dir / left_by_other).exists():
        other = "zookeeper" if embedded else "embedded"
        raise ConfigurationError(
            f"metadata.store = {settings.metadata.store}: the topics of {settings.data_dir} are kept with "
            f"metadata.store = {other} ({left_by_other} is there)"
        )


def open_store(settings: Settings, clock: Clock) -> MetadataStore:
    """A session with the store of `settings`.

    Raises:
        CorruptFile: the embedded store is damaged.
        StorageFault: it cannot be reached, read or written (StoreUnavailable: no ZooKeeper answers).
    """
    metadata = settings.metadata
    if metadata.zookeeper_connect is None:
        return EmbeddedStore(settings.data_dir, clock)
    # Only who asks for it loads kazoo, and only in the process that owns its threads.
    from appliance.control.store.zookeeper_store import ZooKeeperStore

    return ZooKeeperStore(
        metadata.zookeeper_connect,
        metadata.zookeeper_session_timeout_ms,
        data_dir=settings.data_dir,
        clock=clock,
    )
