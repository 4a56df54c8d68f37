"""JSON from somebody else, read strictly: one object, UTF-8, no name twice, no NaN, no depth without an end."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from appliance.errors import ClientFault


class InvalidJson(ClientFault):
    """Bytes that are no JSON object, or one that two readers could understand differently."""


def read_object(data: bytes) -> dict[str, Any]:
    """Return the object.

    Raises:
        InvalidJson: it is no JSON object (RFC 8259), names a member twice, or is too deep.
    """
    try:
        # Decoded here: `json` would take UTF-16 and UTF-32, too.
        found = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except InvalidJson:
        raise
    except RecursionError:
        raise InvalidJson("nested too deep") from None
    except ValueError as error:
        raise InvalidJson(f"no JSON: {str(error)[:100]}") from None
    if not isinstance(found, dict):
        raise InvalidJson("no JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidJson("a name stands twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise InvalidJson(f"{constant} is no number of JSON")
