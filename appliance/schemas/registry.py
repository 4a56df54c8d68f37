"""Schemas from a schema registry that speaks Confluent's REST API, by the ids that records name.

`GET /schemas/ids/ID` answers with JSON: `schema`, `schemaType` (AVRO where it is missing), `references`. For Protobuf,
`?format=serialized` answers with a FileDescriptorProto in Base64. Schemas never change under their id, so each is asked
for once. What is missing is asked for again after ABSENT_S.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from typing import Any, Final
from urllib.parse import urlsplit

from appliance.schemas.avro import AvroSchema
from appliance.schemas.faults import REASON_MAX, Undecodable
from appliance.schemas.kept import KeptSchemas, Schema
from appliance.schemas.protobuf import ProtobufSchema
from appliance.schemas.timed_http import NoAnswer, get

TIMEOUT_S: Final = 3.0
"""For all answers about one schema, from the first question to the last byte."""
ABSENT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 4 << 20
"""A schema with escapes and what stands around it. As values of Python, JSON takes up to 30 times its bytes."""
_HEADERS: Final = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}


class SchemaRegistry:
    """One registry. Threads share it.

    Args:
        url: such as http://127.0.0.1:8081. It has no user and no password.

    Raises:
        ValueError: it is no such address.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
            raise ValueError(f"{url!r}: must be http://HOST:PORT or https://HOST:PORT")
        self._url = url.rstrip("/")
        self._lock = threading.Lock()
        self._kept: KeptSchemas[int, float] = KeptSchemas()
        self._silent_until_s = -ABSENT_S

    def by_id(self, schema_id: int) -> Schema:
        """Return the schema of an id.

        Raises:
            Undecodable: there is none, or the registry does not answer.
        """
        # One question at a time, so that a page of records with one id asks once.
        if not self._lock.acquire(timeout=TIMEOUT_S):
            raise Undecodable("the schema registry is slow, and others wait for it")
        try:
            kept = self._found(schema_id)
        finally:
            self._lock.release()
        if isinstance(kept[1], Undecodable):
            raise Undecodable(str(kept[1]))
        return kept[1]

    def _found(self, schema_id: int) -> tuple[float, Schema | Undecodable]:
        kept, now_s = self._kept.get(schema_id), time.monotonic()
        if kept is not None and (not isinstance(kept[1], Undecodable) or now_s < kept[0] + ABSENT_S):
            return kept
        if now_s < self._silent_until_s:
            # Otherwise a page of records with many ids would wait for each of them.
            return now_s, _Silent("the schema registry does not answer")
        found, size_bytes = self._asked(schema_id)
        now_s = time.monotonic()
        if isinstance(found, _Silent):
            self._silent_until_s = now_s + ABSENT_S
        else:
            self._kept.put(schema_id, now_s, found, size_bytes)
        return now_s, found

    def _asked(self, schema_id: int) -> tuple[Schema | Undecodable, int]:
        """Return the schema, or why there is none, and the bytes of its text."""
        until_s = time.monotonic() + TIMEOUT_S
        try:
            answer = self._get(f"/schemas/ids/{schema_id}", until_s)
            kind = answer.get("schemaType", "AVRO")
            if kind == "AVRO":
                if answer.get("references"):
                    raise Undecodable("it has references to other schemas, which are not read")
                return AvroSchema(answer["schema"]), len(answer["schema"])
            if kind == "PROTOBUF":
                serialized = self._get(f"/schemas/ids/{schema_id}?format=serialized", until_s)["schema"]
                data = base64.b64decode(serialized, validate=True)
                return ProtobufSchema(data, is_one_file=True), len(data)
            raise Undecodable(f"it is of the type {kind}")
        except _Silent as fault:
            return fault, 0
        except Undecodable as fault:
            return _unusable(schema_id, str(fault)), 0
        except (KeyError, TypeError, ValueError, RecursionError, binascii.Error) as error:
            return _unusable(schema_id, f"{type(error).__name__}: {error}"), 0

    def _get(self, path: str, until_s: float) -> Any:
        try:
            status, body = get(
                self._url + path, headers=_HEADERS, until_s=until_s, bytes_max=ANSWER_BYTES_MAX + 1
            )
        except NoAnswer as error:
            raise _Silent(f"the schema registry does not answer: {error}"[:REASON_MAX]) from None
        if status == 404:
            raise Undecodable("there is none")
        if status != 200 or len(body) > ANSWER_BYTES_MAX:
            raise Undecodable(f"the registry answers with status {status} and {len(body)} bytes")
        found = json.loads(body)
        if not isinstance(found, dict):
            raise Undecodable("the answer is no object")
        return found


def _unusable(schema_id: int, why: str) -> Undecodable:
    return Undecodable(f"schema {schema_id} of the registry: {why}"[:REASON_MAX])


class _Silent(Undecodable):
    """Nobody answers."""
