"""One entry of the audit journal: a line of JSON.

    {"time":"2026-03-01T12:00:00.123Z","event":"change","result":"failed","principal":"User:alice","host":"10.0.0.7",
     "port":51234,"listener":"EXTERNAL","client":"ops","connection":7,"api":"CreateTopics","version":7,
     "resources":[{"type":"topic","name":"orders","result":"done","detail":{"partitions":"3"}},
                  {"type":"topic","name":"a/b","result":"failed","error":"INVALID_TOPIC_EXCEPTION","code":17}],
     "process":"netproc 0"}

| event | what happened | result |
|---|---|---|
| `authentication` | a client proved, or could not prove, who it is | `done`, `denied` |
| `refusal` | a rule denied an operation on each of the resources | `denied` |
| `change` | an admin API was asked for changes | `done`; `failed` or `denied` if one resource has it; `unknown` |
| `repeats` | the number of further entries like that, which were not recorded one by one | – |
| `lost` | the number of entries that found no room | – |

The result of a change is `unknown` if the client has left before it was answered: the change may have taken place.

An entry holds no contents of records and no secrets. Texts of clients are cut to TEXT_CHARACTERS_MAX, and an entry has
RESOURCES_MAX resources at most: a larger request has several entries. Fields without a value are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from appliance.protocol.errors import ErrorCode

TEXT_CHARACTERS_MAX: Final = 300
RESOURCES_MAX: Final = 50

AUTHENTICATION: Final = "authentication"
REFUSAL: Final = "refusal"
CHANGE: Final = "change"
REPEATS: Final = "repeats"
LOST: Final = "lost"
EVENTS: Final = (AUTHENTICATION, REFUSAL, CHANGE, REPEATS, LOST)

DONE: Final = "done"
DENIED: Final = "denied"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"

DENIALS: Final = frozenset(
    {
        int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        int(ErrorCode.GROUP_AUTHORIZATION_FAILED),
        int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        int(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED),
    }
)
"""Error codes that say that a rule keeps the client from it."""


class Resource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thing that a request names, and what became of it there.

    `operation`: what the client may not do to it; `error` and `code`: Kafka's; `detail`: what was to be changed.
    """

    type: str
    name: str
    result: str
    operation: str = ""
    error: str = ""
    code: int = 0
    detail: dict[str, str] = {}


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. The fields are in the order in which they are written."""

    time: str
    event: str
    result: str = ""
    principal: str = ""
    host: str = ""
    port: int = 0
    listener: str = ""
    client: str = ""
    connection: int = 0
    api: str = ""
    version: int = -1
    mechanism: str = ""
    reason: str = ""
    resources: tuple[Resource, ...] = ()
    of: str = ""
    """Of `repeats`: entries of which event."""
    count: int = 0
    seconds: int = 0
    process: str = ""


def line(entry: Entry) -> bytes:
    """Return the entry as it is written, with its line end."""
    return msgspec.json.encode(entry) + b"\n"


def time_text(now_ms: int) -> str:
    """Return a time as entries write it, for example `2026-03-01T12:00:00.123Z`.

    Args:
        now_ms: milliseconds since 1970, UTC.
    """
    seconds, milliseconds = divmod(now_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def cut(text: str) -> str:
    """Return a text of a client as an entry holds it."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"


def resource(
    kind: str, name: str, code: int, detail: Mapping[str, str | int | None] | None = None
) -> Resource:
    """Return a resource of a change.

    Args:
        code: the error code in the response, 0 for none.
        detail: what was to be changed; None is left out.
    """
    told = {key: cut(str(value)) for key, value in (detail or {}).items() if value is not None}
    if not code:
        return Resource(kind, cut(name), DONE, detail=told)
    return Resource(
        kind,
        cut(name),
        DENIED if code in DENIALS else FAILED,
        error=error_name(code),
        code=code,
        detail=told,
    )


def error_name(code: int) -> str:
    """Return the name of an error code, or its number where it has none."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
