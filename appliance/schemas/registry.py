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
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import urlsplit

from appliance.schemas.avro import AvroSchema
from appliance.schemas.faults import DESCRIPTORS_BYTES_MAX, Undecodable
from appliance.schemas.protobuf import ProtobufSchema

TIMEOUT_S: Final = 3.0
ABSENT_S: Final = 30.0
KEPT_MAX: Final = 1_000
Schema = AvroSchema | ProtobufSchema


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
        self._kept: dict[int, tuple[float, Schema | Undecodable]] = {}
        # No redirect leads elsewhere, and no proxy of the environment is used.
        self._opener = urllib.request.OpenerDirector()
        for handler in (urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()):
            self._opener.add_handler(handler)

    def by_id(self, schema_id: int) -> Schema:
        """Return the schema of an id.

        Raises:
            Undecodable: there is none, or the registry does not answer.
        """
        with self._lock:  # one question at a time, so that a page of records with one id asks once
            kept = self._kept.get(schema_id)
            if kept is None or (isinstance(kept[1], Undecodable) and time.monotonic() >= kept[0] + ABSENT_S):
                kept = time.monotonic(), self._asked(schema_id)
                if len(self._kept) >= KEPT_MAX:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[schema_id] = kept
        if isinstance(kept[1], Undecodable):
            raise Undecodable(str(kept[1]))
        return kept[1]

    def _asked(self, schema_id: int) -> Schema | Undecodable:
        # A registry that does not answer would make a page of records with many ids wait for each of them.
        silent = [at for at, found in self._kept.values() if isinstance(found, _Silent)]
        if silent and time.monotonic() < max(silent) + ABSENT_S:
            return _Silent("the schema registry does not answer")
        try:
            answer = self._get(f"/schemas/ids/{schema_id}")
            kind = answer.get("schemaType", "AVRO")
            if kind == "AVRO":
                if answer.get("references"):
                    raise Undecodable("it has references to other schemas, which are not read")
                return AvroSchema(answer["schema"])
            if kind == "PROTOBUF":
                serialized = self._get(f"/schemas/ids/{schema_id}?format=serialized")["schema"]
                return ProtobufSchema(base64.b64decode(serialized, validate=True), is_one_file=True)
            raise Undecodable(f"it is of the type {kind}")
        except _Silent as fault:
            return fault
        except Undecodable as fault:
            return Undecodable(f"schema {schema_id} of the registry: {fault}")
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            return Undecodable(f"schema {schema_id} of the registry: {type(error).__name__}: {error}")

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(
            self._url + path, headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                status, body = response.status, response.read(DESCRIPTORS_BYTES_MAX + 1)
        except (OSError, urllib.error.URLError, ValueError) as error:
            raise _Silent(f"the schema registry does not answer: {error}"[:300]) from None
        if status == 404:
            raise Undecodable("there is none")
        if status != 200 or len(body) > DESCRIPTORS_BYTES_MAX:
            raise Undecodable(f"the registry answers with status {status} and {len(body)} bytes")
        found = json.loads(body)
        if not isinstance(found, dict):
            raise Undecodable("the answer is no object")
        return found


class _Silent(Undecodable):
    """Nobody answers."""
