"""What was set for users, in the metadata store: SCRAM credentials, and whatever else Kafka keeps in the same nodes.

`/config/users/NAME` holds a mapping. The keys `SCRAM-SHA-256` and `SCRAM-SHA-512` hold credentials, in Kafka's text; a
change of them leaves the other keys (quotas) as they are. A node is never deleted, as in Kafka: quotas of a user's
clients are below it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from appliance.cluster import ScramCredential
from appliance.control.store.metadata_store import Create, MetadataStore, Operation, SetData
from appliance.control.store.znode_tree import (
    DEFAULT_ENTITY,
    USER_CONFIGS,
    ConfigRecord,
    decode,
    encode,
    user_config_path,
    user_of_node,
)
from appliance.errors import CorruptFile
from appliance.sasl.scram_credential import DIGESTS, credential_text, parse_credential

CREDENTIALS_MAX: Final = 100_000
"""Some 300 bytes each, in every network process and coordinator."""

ScramKey = tuple[str, str]
"""User and mechanism."""

_logger = logging.getLogger(__name__)


def load_user_configs(store: MetadataStore) -> dict[str, dict[str, str]]:
    """Return user → what was set there. Raises CorruptFile where a node holds something else."""
    names = [name for name in store.children(USER_CONFIGS) if name != DEFAULT_ENTITY]
    nodes = store.get_many(f"{USER_CONFIGS}/{name}" for name in names)
    return {
        user_of_node(name): decode(ConfigRecord, node.data, path=node.path).config if node.data else {}
        for name in names
        if (node := nodes.get(f"{USER_CONFIGS}/{name}")) is not None
    }


def scram_of(configs: Mapping[str, Mapping[str, str]]) -> dict[ScramKey, ScramCredential]:
    """Return the credentials among what was set for users. One that does not parse counts as none, with a line."""
    found: dict[ScramKey, ScramCredential] = {}
    for user, config in configs.items():
        for mechanism in DIGESTS:
            if mechanism in config:
                try:
                    found[user, mechanism] = parse_credential(user, mechanism, config[mechanism])
                except CorruptFile as fault:
                    _logger.error("%s: the user cannot authenticate with it; set a new password", fault)
    return found


def with_credential(
    config: Mapping[str, str], mechanism: str, credential: ScramCredential | None
) -> dict[str, str]:
    """Return what is set for a user after its credential has changed, or has gone."""
    changed = {name: value for name, value in config.items() if name != mechanism}
    if credential is not None:
        changed[mechanism] = credential_text(credential)
    return changed


def user_alteration(user: str, config: Mapping[str, str], *, is_new: bool) -> list[Operation]:
    """Makes `config` all that is set for a user; `is_new` where nothing ever was."""
    path, data = user_config_path(user), encode(ConfigRecord(dict(config)))
    return [Create(path, data) if is_new else SetData(path, data)]
