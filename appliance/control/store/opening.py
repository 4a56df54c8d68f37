"""Which store the settings ask for, opened.

A data directory belongs to one store for good: its topics' ids and its cluster id are there. Asked for the
other one, it would come up empty beside the logs of topics that nobody knows.
"""

from __future__ import annotations

from pathlib import Path

from appliance.clock import Clock
from appliance.config import Settings
from appliance.control.store.embedded_store import DATABASE_NAME, EmbeddedStore
from appliance.control.store.left_sessions import DIRECTORY
from appliance.control.store.metadata_store import MetadataStore
from appliance.errors import ConfigurationError
from appliance.extras import need


def refuse_other_store(settings: Settings) -> None:
    """Raises:
    ConfigurationError: the data directory belongs to the other store.
    OperatorFault: the store needs a package that is not installed.
    """
    embedded = settings.metadata.store == "embedded"
    if not embedded:
        need("kazoo", needed_by="metadata.store = zookeeper")
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
    if settings.metadata.zookeeper_connect is None:
        return EmbeddedStore(settings.data_dir, clock, copy_directories(settings))
    return _zookeeper(settings, clock, handed_on=False)


def copy_directories(settings: Settings) -> tuple[Path, ...]:
    """Where copies of the embedded store may be; the first is where the copy is kept.

    That is a log directory on another file system than data.dir where there is one, since it outlives that disk;
    otherwise data.dir, where it outlives damage of the file.
    """
    data_dir = settings.data_dir
    places = [
        directory
        for slot in range(settings.slots)
        for directory in settings.log_directories(slot)
        if directory.is_dir()
    ]
    home = _device(data_dir)
    elsewhere = [directory for directory in places if _device(directory) not in (home, None)]
    return tuple(dict.fromkeys([*elsewhere, data_dir, *places]))


def _device(directory: Path) -> int | None:
    try:
        return directory.stat().st_dev
    except OSError:
        return None


class Registrations:
    """The session that the registrations of slots belong to, `/brokers/ids/N`: which must not go with a controller.

    In ZooKeeper, where others look, it is a second one, which the next controller goes on with; nobody but controllers
    looks into the embedded store, and there it is the controller's own.
    """

    __slots__ = ("_clock", "_session", "_settings")

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._session: MetadataStore | None = None

    def session(self, store: MetadataStore) -> MetadataStore:
        """For a controller whose own session is `store`; opened when it is first asked for.

        Raises:
            StorageFault: as `open_store`; or the process that keeps it lives.
        """
        if self._settings.metadata.zookeeper_connect is None:
            return store
        if self._session is None:
            self._session = _zookeeper(self._settings, self._clock, handed_on=True)
        return self._session

    def close(self) -> None:
        """The slots stop: their registrations go. A process that only makes room for the next one does not say so."""
        if self._session is not None:
            self._session.close()


def _zookeeper(settings: Settings, clock: Clock, *, handed_on: bool) -> MetadataStore:
    # Only who asks for it loads kazoo, and only in the process that owns its threads.
    from appliance.control.store.zookeeper_store import ZooKeeperStore

    metadata = settings.metadata
    assert metadata.zookeeper_connect is not None
    return ZooKeeperStore(
        metadata.zookeeper_connect,
        metadata.zookeeper_session_timeout_ms,
        data_dir=settings.data_dir,
        clock=clock,
        handed_on=handed_on,
    )
