"""The metadata image: everything needed to answer Metadata, published by the controller through shared memory.

A pointer region holds the current version (one word, written by the controller). Version v lives in its own
region `image-<v>`: length word, then the encoded image. The controller writes a new region whole, then moves the
pointer, then removes the region before the last; a reader that loses that race reads the pointer again.
A reader that is up to date pays one load per look.

An image is whole, but its cost is that of what changed: each topic is encoded on its own and its bytes are kept.
The publisher encodes a topic when its `TopicImage` is another object than before, a reader decodes it when its
bytes are others than before; everything else is a comparison. So a `TopicImage` is never changed in place. The rules of
access are encoded and decoded together in the same way, and so are the quotas and the delegation tokens.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from appliance.cluster import (
    AclBinding,
    BrokerSlot,
    ClientQuotas,
    ClusterImage,
    DelegationToken,
    ScramCredential,
    TopicImage,
)
from appliance.errors import ApplianceDefect, HostFault
from appliance.ipc.shared_memory import Region, unlink

POINTER_BYTES = 4096
LENGTH = struct.Struct("<Q")
READ_TRIES = 1000


class _EncodedImage(msgspec.Struct, array_like=True, frozen=True):
    """A `ClusterImage` whose topics, rules, credentials, quotas and tokens are bytes still."""

    version: int
    cluster_id: str
    controller_id: int
    controller_epoch: int
    slots: tuple[BrokerSlot, ...]
    topics: dict[str, msgspec.Raw]
    broker_configs: dict[str, dict[str, str]]
    group_configs: dict[str, dict[str, str]]
    acls: msgspec.Raw
    scram: msgspec.Raw
    quotas: msgspec.Raw
    tokens: msgspec.Raw
    client_metrics: dict[str, dict[str, str]]


class _ImageWithoutTopics(msgspec.Struct, array_like=True, frozen=True):
    """As `_EncodedImage`, whose topics are passed over."""

    version: int
    cluster_id: str
    controller_id: int
    controller_epoch: int
    slots: msgspec.Raw
    topics: msgspec.Raw
    broker_configs: dict[str, dict[str, str]]
    group_configs: msgspec.Raw
    acls: msgspec.Raw
    scram: msgspec.Raw
    quotas: msgspec.Raw
    tokens: msgspec.Raw
    client_metrics: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_EncodedImage).decode
_decode_without_topics = msgspec.msgpack.Decoder(_ImageWithoutTopics).decode
_decode_topic = msgspec.msgpack.Decoder(TopicImage).decode
_decode_acls = msgspec.msgpack.Decoder(tuple[AclBinding, ...]).decode
_decode_scram = msgspec.msgpack.Decoder(tuple[ScramCredential, ...]).decode
_decode_quotas = msgspec.msgpack.Decoder(tuple[ClientQuotas, ...]).decode
_decode_tokens = msgspec.msgpack.Decoder(tuple[DelegationToken, ...]).decode


def image_region_name(directory: Path, version: int) -> str:
    """Return the path of one version's region in the instance's private directory."""
    return f"{directory}/image-{version}"


class ImagePublisher:
    """The controller's side. One per instance."""

    __slots__ = (
        "_acls",
        "_cells",
        "_directory",
        "_encoded",
        "_encoded_acls",
        "_encoded_quotas",
        "_encoded_scram",
        "_encoded_tokens",
        "_quotas",
        "_scram",
        "_tokens",
        "_topics",
    )

    def __init__(self, directory: Path, pointer: memoryview) -> None:
        self._directory = directory
        self._cells = pointer.cast("B").cast("q")
        self._topics: dict[str, TopicImage] = {}
        self._encoded: dict[str, msgspec.Raw] = {}
        self._acls: tuple[AclBinding, ...] = ()
        self._encoded_acls = msgspec.Raw(_encode(()))
        self._scram: tuple[ScramCredential, ...] = ()
        self._encoded_scram = msgspec.Raw(_encode(()))
        self._quotas: tuple[ClientQuotas, ...] = ()
        self._encoded_quotas = msgspec.Raw(_encode(()))
        self._tokens: tuple[DelegationToken, ...] = ()
        self._encoded_tokens = msgspec.Raw(_encode(()))

    @property
    def version(self) -> int:
        return self._cells[0]

    def publish(self, image: ClusterImage) -> None:
        """Makes `image` current; its version must be the next one."""
        if image.version <= self.version:
            raise ApplianceDefect(f"image version {image.version} does not follow {self.version}")
        data = self._encode(image)
        name = image_region_name(self._directory, image.version)
        unlink(name)  # a controller that died between writing and pointing left it
        region = Region.create(name, LENGTH.size + len(data))
        LENGTH.pack_into(region.view, 0, len(data))
        region.view[LENGTH.size : LENGTH.size + len(data)] = data
        region.close()
        previous = self.version
        self._cells[0] = image.version
        unlink(image_region_name(self._directory, previous - 1))

    def _encode(self, image: ClusterImage) -> bytes:
        before, encoded = self._topics, self._encoded
        for name, topic in image.topics.items():
            if before.get(name) is not topic:
                encoded[name] = msgspec.Raw(_encode(topic))
        for name in before.keys() - image.topics.keys():
            del encoded[name]
        self._topics = dict(image.topics)
        if image.acls is not self._acls:
            self._acls, self._encoded_acls = image.acls, msgspec.Raw(_encode(image.acls))
        if image.scram is not self._scram:
            self._scram, self._encoded_scram = image.scram, msgspec.Raw(_encode(image.scram))
        if image.quotas is not self._quotas:
            self._quotas, self._encoded_quotas = image.quotas, msgspec.Raw(_encode(image.quotas))
        if image.tokens is not self._tokens:
            self._tokens, self._encoded_tokens = image.tokens, msgspec.Raw(_encode(image.tokens))
        return _encode(
            _EncodedImage(
                image.version,
                image.cluster_id,
                image.controller_id,
                image.controller_epoch,
                image.slots,
                encoded,
                image.broker_configs,
                image.group_configs,
                self._encoded_acls,
                self._encoded_scram,
                self._encoded_quotas,
                self._encoded_tokens,
                image.client_metrics,
            )
        )


class ImageReader:
    """Any process's side: `current()` decodes only when the version moved.

    Args:
        directory: the private directory of the instance.
        pointer: the view of the pointer region.
        owner: the user id of the instance; None for this process's user.
    """

    __slots__ = (
        "_cells",
        "_directory",
        "_encoded",
        "_encoded_acls",
        "_encoded_quotas",
        "_encoded_scram",
        "_encoded_tokens",
        "_image",
        "_owner",
    )

    def __init__(self, directory: Path, pointer: memoryview, *, owner: int | None = None) -> None:
        self._directory = directory
        self._owner = owner
        self._cells = pointer.cast("B").cast("q")
        self._encoded: dict[str, msgspec.Raw] = {}
        self._encoded_acls: msgspec.Raw | None = None
        self._encoded_scram: msgspec.Raw | None = None
        self._encoded_quotas: msgspec.Raw | None = None
        self._encoded_tokens: msgspec.Raw | None = None
        self._image: ClusterImage | None = None

    @property
    def version(self) -> int:
        """Version that is current in shared memory; 0 before the controller published anything."""
        return self._cells[0]

    def current(self) -> ClusterImage | None:
        """The current image, None before the first."""
        image = self._image
        if image is not None and image.version == self._cells[0]:
            return image
        data = self._read()
        if data is None:
            return None
        self._image = self._decode(data)
        return self._image

    def broker_configs(self) -> dict[str, dict[str, str]]:
        """Of the current image, what was set on brokers, without decoding a topic; for processes that need no more.

        Empty before the first image. Reads the whole image each time: compare `version` before calling it.
        """
        data = self._read()
        return {} if data is None else _decode_without_topics(data).broker_configs

    def limits(self) -> tuple[dict[str, dict[str, str]], tuple[ClientQuotas, ...]]:
        """Of the current image, what was set on brokers, and the quotas, as `broker_configs` reads them."""
        data = self._read()
        if data is None:
            return {}, ()
        image = _decode_without_topics(data)
        return image.broker_configs, _decode_quotas(image.quotas)

    def _read(self) -> bytes | None:
        """The bytes of the current image, None before the first."""
        for _ in range(READ_TRIES):
            version = self._cells[0]
            if version == 0:
                return None
            try:
                name = image_region_name(self._directory, version)
                region = Region.open(name, owner=self._owner, writable=False)
            except HostFault:
                continue
            try:
                (length,) = LENGTH.unpack_from(region.view, 0)
                return bytes(region.view[LENGTH.size : LENGTH.size + length])
            finally:
                region.close()
        raise ApplianceDefect("the metadata image moves faster than it can be read")

    def _decode(self, data: bytes) -> ClusterImage:
        image = _decode(data)
        known = self._image.topics if self._image is not None else {}
        before = self._encoded
        topics = {
            name: known[name] if before.get(name) == encoded else _decode_topic(encoded)
            for name, encoded in image.topics.items()
        }
        known_acls, known_scram = ((), ()) if self._image is None else (self._image.acls, self._image.scram)
        acls = known_acls if self._encoded_acls == image.acls else _decode_acls(image.acls)
        scram = known_scram if self._encoded_scram == image.scram else _decode_scram(image.scram)
        known_quotas = self._image.quotas if self._image is not None else ()
        quotas = known_quotas if self._encoded_quotas == image.quotas else _decode_quotas(image.quotas)
        known_tokens = self._image.tokens if self._image is not None else ()
        tokens = known_tokens if self._encoded_tokens == image.tokens else _decode_tokens(image.tokens)
        # The new bytes in any case: the old ones keep the whole old image in memory.
        self._encoded, self._encoded_acls = image.topics, image.acls
        self._encoded_scram, self._encoded_quotas = image.scram, image.quotas
        self._encoded_tokens = image.tokens
        return ClusterImage(
            image.version,
            image.cluster_id,
            image.controller_id,
            image.controller_epoch,
            image.slots,
            topics,
            image.broker_configs,
            image.group_configs,
            acls,
            scram,
            quotas,
            tokens,
            image.client_metrics,
        )
