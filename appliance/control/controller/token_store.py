"""Delegation tokens in the metadata store, where Kafka had them in ZooKeeper: a node for each, without its password.

As in `acl_store`, each function makes operations for one `multi`, behind the controller's fence.
"""

from __future__ import annotations

import logging

from msgspec import UNSET

from appliance.cluster import DelegationToken
from appliance.control.store.metadata_store import Create, Delete, MetadataStore, Operation, SetData
from appliance.control.store.znode_tree import (
    DELEGATION_TOKENS,
    TOKEN_PATHS,
    TokenRecord,
    decode,
    encode,
    entity_node,
    entity_of_node,
    token_path,
)
from appliance.errors import CorruptFile

_logger = logging.getLogger(__name__)


def load_tokens(store: MetadataStore) -> dict[str, DelegationToken]:
    """Return every token by its id. One that does not parse counts as none, with a line: nobody can log in with it."""
    tokens: dict[str, DelegationToken] = {}
    if not store.exists(DELEGATION_TOKENS):
        return tokens
    nodes = store.get_many(f"{DELEGATION_TOKENS}/{name}" for name in store.children(DELEGATION_TOKENS))
    for path, node in nodes.items():
        try:
            record = decode(TokenRecord, node.data, path=path)
        except CorruptFile as fault:
            _logger.error("%s: nobody can log in with this delegation token; create another one", fault)
            continue
        owner = entity_of_node(record.owner)
        requester = owner if record.token_requester is UNSET else entity_of_node(record.token_requester)
        # The node's own name counts: by it the token is changed and removed.
        token_id = path.rpartition("/")[2]
        tokens[token_id] = DelegationToken(
            token_id,
            owner,
            requester,
            tuple(map(entity_of_node, record.renewers)),
            record.issue_timestamp,
            record.max_timestamp,
            record.expiry_timestamp,
        )
    return tokens


def has_folder(store: MetadataStore) -> bool:
    """Return whether the nodes above the tokens exist."""
    return store.exists(DELEGATION_TOKENS) is not None


def token_creation(token: DelegationToken, *, has_folder: bool) -> list[Operation]:
    """Make a token. `has_folder`: whether there was one ever."""
    made: list[Operation] = [] if has_folder else [Create(path) for path in TOKEN_PATHS]
    return [*made, Create(token_path(token.token_id), _data(token))]


def token_alteration(token: DelegationToken) -> Operation:
    """Make `token` what is kept under its id."""
    return SetData(token_path(token.token_id), _data(token))


def token_deletion(token: DelegationToken) -> Operation:
    """Remove a token."""
    return Delete(token_path(token.token_id))


def _data(token: DelegationToken) -> bytes:
    return encode(
        TokenRecord(
            token_id=token.token_id,
            owner=entity_node(token.owner),
            renewers=tuple(map(entity_node, token.renewers)),
            issue_timestamp=token.issued_ms,
            max_timestamp=token.max_ms,
            expiry_timestamp=token.expires_ms,
            token_requester=entity_node(token.requester),
        )
    )
