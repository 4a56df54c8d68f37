"""Keys and values of `consume` decoded by schemas of Avro and Protobuf (`appliance/schemas/`).

What cannot be decoded is printed as it is. Standard error says why, once for each reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.record_format import Formatter, json_line_with, key_of, value_of
from appliance.schemas.decoder import Decoded, Decoder
from appliance.schemas.faults import NoSchema, Undecodable

if TYPE_CHECKING:
    from confluent_kafka import Message

WARNINGS_MAX: Final = 20
"""Reasons that standard error gives."""
_REST: Final = {"key": key_of, "value": value_of}


class DecodedMessage:
    """A record whose key and value are JSON, as formatters read it."""

    __slots__ = ("_decoding", "_message")

    def __init__(self, message: Message, decoding: Decoding) -> None:
        self._message = message
        self._decoding = decoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def key(self) -> bytes | None:
        """Return the key as JSON in UTF-8; as it is, if it cannot be decoded."""
        return self._decoding.text(self._message, "key")

    def value(self) -> bytes | None:
        """Return the value; as `key`."""
        return self._decoding.text(self._message, "value")


class Decoding:
    """How `consume` decodes.

    Args:
        form: one of `schemas.decoder.FORMS`.
        warn: writes a line for the person.

    Raises:
        click.UsageError: the address of the registry is none.
    """

    def __init__(
        self, form: str, directory: str | None, registry: str | None, *, warn: Callable[[str], None]
    ) -> None:
        try:
            self._decoder = Decoder(directory, registry)
        except ValueError as fault:
            raise click.UsageError(f"--schema-registry: {fault}") from None
        self._form = form
        self._warn = warn
        self._said: set[str] = set()

    def formatter(self, inner: Formatter) -> Formatter:
        """Return a formatter that gives `inner` decoded records."""
        return lambda message: inner(DecodedMessage(message, self))  # type: ignore[arg-type]

    def json_line(self) -> Formatter:
        """Return a formatter of lines of JSON, in which decoded keys and values are JSON, too."""
        return json_line_with(self._objects)

    def _objects(self, message: Message) -> dict[str, Any]:
        found = {part: self._decoded(message, part) for part in _REST}
        return {part: json.loads(each.json) for part, each in found.items() if each is not None}

    def text(self, message: Message, part: str) -> bytes | None:
        """Return a key or value as JSON; as it is, if it cannot be decoded."""
        found = self._decoded(message, part)
        return _REST[part](message) if found is None else found.json.encode("utf-8", "surrogateescape")

    def _decoded(self, message: Message, part: str) -> Decoded | None:
        data = _REST[part](message)
        if not data:
            return None
        try:
            return self._decoder.decode(data, topic=message.topic() or "", part=part, form=self._form)
        except NoSchema as fault:
            # Keys are often plain text, so that only values are expected to have a schema.
            if part == "value":
                self._say(f"not decoded: {fault}")
        except Undecodable as fault:
            self._say(f"the {part} of {message.topic()}-{message.partition()} is not decoded: {fault}")
        return None

    def _say(self, text: str) -> None:
        if text not in self._said and len(self._said) < WARNINGS_MAX:
            self._said.add(text)
            self._warn(text)
