"""The records of internal topics, decoded for `appliance log dump --records`.

    __consumer_offsets     committed offsets; classic groups; groups of the consumer protocol
    __transaction_state    transactional ids

As `kafka-dump-log --offsets-decoder` and `--transaction-log-decoder` do. What a record is, the rooms of the coordinator
say. A record that does not decode is shown as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from appliance.control.coordinator.group.consumer_records import read_change
from appliance.control.coordinator.group.group_metadata_record import GROUP_METADATA_KEY, read_value
from appliance.control.coordinator.transaction.transaction_record import read_transaction_record
from appliance.control.coordinator.transaction.transaction_state import STATES
from appliance.errors import ApplianceError
from appliance.protocol.primitives import Cursor
from appliance.protocol.records.offset_records import OFFSET_KEYS, parse_key, parse_value

Decoded: TypeAlias = dict[str, Any]
"""What a record says, by names. `deleted`: it is a tombstone."""


def decoder_of(path: Path) -> Callable[[bytes | None, bytes | None], Decoded | None] | None:
    """Return the decoder of the records in a segment, by its directory's name; None for any other topic.

    The decoder takes a record's key and value, and returns None for what it does not know or cannot read.
    """
    decode = _DECODERS.get(path.absolute().parent.name.rpartition("-")[0])
    if decode is None:
        return None

    def decoded(key: bytes | None, value: bytes | None) -> Decoded | None:
        if key is None:
            return None
        try:
            found = decode(bytes(key), None if value is None else bytes(value))
        except ApplianceError:
            return None
        return None if found is None else found | {"deleted": value is None}

    return decoded


def _offsets_topic(key: bytes, value: bytes | None) -> Decoded | None:
    if key[:2] in OFFSET_KEYS:
        place = parse_key(key)._asdict()
        return {
            "record": "offset",
            **place,
            **({} if value is None else _plain(parse_value(value)._asdict())),
        }
    cursor = Cursor(memoryview(key), 0, len(key))
    if cursor.int16() == GROUP_METADATA_KEY:
        group = {"record": "group", "group": cursor.string()}
        return group if value is None else group | _plain(read_value(value))
    change = read_change(key, value)
    if change is None:
        return None
    group_id, what = change
    name = type(what).__name__.removesuffix("Change")
    return {"record": f"consumer group: {name}", "group": group_id, **_plain(what)}


def _transactions_topic(key: bytes, value: bytes | None) -> Decoded | None:
    read = read_transaction_record(key, value)
    if read is None:
        return None
    transactional_id, transaction = read
    found: Decoded = {"record": "transaction", "transactional_id": transactional_id}
    if transaction is None:
        return found
    partitions = sorted(map(str, transaction.partitions))
    shown = _plain(transaction)
    del shown["last_epoch"]  # no part of the record
    return found | shown | {"state": STATES[transaction.state].name, "partitions": partitions}


def _plain(value: Any) -> Decoded:
    """Return the fields of a value as JSON has them: UUIDs as text, bytes as Base64."""
    found: Decoded = msgspec.to_builtins(value, str_keys=True)
    return found


_DECODERS: Final[dict[str, Callable[[bytes, bytes | None], Decoded | None]]] = {
    "__consumer_offsets": _offsets_topic,
    "__transaction_state": _transactions_topic,
}
