"""SCRAM credentials for an appliance that does not run: the first user, before anybody can log in.

The data directory's lock is held meanwhile, so no appliance begins on it. The same in Kafka: `kafka-storage format
--add-scram`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from appliance.clock import Clock
from appliance.cluster import ScramCredential
from appliance.config import Settings
from appliance.control.adoption.marker import refuse_unfinished
from appliance.control.backup.marker import refuse_unfinished_restore
from appliance.control.controller.takeover import plant
from appliance.control.controller.user_store import scram_alteration
from appliance.control.store.metadata_store import Operation
from appliance.control.store.opening import open_store, refuse_other_store
from appliance.control.supervisor.data_directory import DataDirectory
from appliance.control.supervisor.permissions import PRIVATE_UMASK, readers_group


def add_credentials(settings: Settings, credentials: Sequence[ScramCredential], clock: Clock) -> None:
    """Write credentials to the metadata store; all of them or none.

    Raises:
        DataDirectoryInUse: an appliance runs on the data directory.
        OperatorFault, StorageFault: the directory or the store cannot be used.
    """
    refuse_unfinished(settings.data_dir)
    refuse_unfinished_restore(settings.data_dir)
    refuse_other_store(settings)
    os.umask(PRIVATE_UMASK)
    directory = DataDirectory.hold(settings.data_dir, patience_ms=0, group=readers_group(settings))
    try:
        store = open_store(settings, clock)
        try:
            plant(store)
            operations: list[Operation] = []
            scram_alteration(store, operations, {(each.user, each.mechanism): each for each in credentials})
            store.multi(operations)
        finally:
            store.close()
    finally:
        directory.release()
