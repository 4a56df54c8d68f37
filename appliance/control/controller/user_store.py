"""SCRAM credentials in the metadata store, in the nodes of their users.

`/config/users/NAME` holds a mapping (`entity_configs`). The keys `SCRAM-SHA-256` and `SCRAM-SHA-512` hold credentials,
in Kafka's text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from appliance.cluster import ScramCredential
from appliance.control.controller.entity_configs import PendingTree, alter_configs
from appliance.control.store.metadata_store import MetadataStore, Operation
from appliance.control.store.znode_tree import (
    DEFAULT_ENTITY,
    USER_CONFIGS,
    ConfigRecord,
    decode,
    entity_of_node,
    user_config_path,
)
from appliance.errors import CorruptFile
from appliance.sasl.scram_credential import DIGESTS, credential_text, parse_credential

CREDENTIALS_MAX: Final = 100_000
"""Some 300 bytes each, in every network process and coordinator."""

ScramKey = tuple[str, str]
"""User and mechanism."""

_logger = logging.getLogger(__name__)


def load_scram(store: MetadataStore) -> dict[ScramKey, ScramCredential]:
    """Return every credential. One that does not parse counts as none, with a line.

    Raises:
        CorruptFile: a node holds something else than settings.
    """
    names = [name for name in store.children(USER_CONFIGS) if name != DEFAULT_ENTITY]
    found: dict[ScramKey, ScramCredential] = {}
    for path, node in store.get_many(f"{USER_CONFIGS}/{name}" for name in names).items():
        user = entity_of_node(path.rpartition("/")[2])
        # Kafka makes a node without data above the first client id of a user.
        config = decode(ConfigRecord, node.data, path=path).config if node.data else {}
        for mechanism in DIGESTS:
            if mechanism in config:
                try:
                    found[user, mechanism] = parse_credential(user, mechanism, config[mechanism])
                except CorruptFile as fault:
                    _logger.error("%s: the user cannot authenticate with it; set a new password", fault)
    return found


def scram_alteration(
    store: MetadataStore, operations: list[Operation], changes: Mapping[ScramKey, ScramCredential | None]
) -> None:
    """Add to `operations`, which are not done yet, what sets credentials or removes them (None).

    Raises:
        StorageFault, CorruptFile: the nodes of the users cannot be read. Then `operations` is as before.
    """
    by_path: dict[str, dict[str, str | None]] = {}
    for (user, mechanism), credential in changes.items():
        text = None if credential is None else credential_text(credential)
        by_path.setdefault(user_config_path(user), {})[mechanism] = text
    planned = operations.copy()
    tree = PendingTree(store, planned, by_path)
    for path, texts in by_path.items():
        alter_configs(tree, path, texts)
    operations[:] = planned
