"""The metadata image: everything needed to answer Metadata, published by the controller through shared memory.

A pointer region holds the current version (one word, written by the controller). Version v lives in its own
region `image-<v>`: length word, then the encoded image. The controller writes a new region whole, then moves the
pointer, then removes the region before the last; a reader that loses that race reads the pointer again.
A reader that is up to date pays one load per look.
"""

from __future__ import annotations

import struct

import msgspec

from appliance.cluster import ClusterImage
from appliance.errors import ApplianceDefect, HostFault
from appliance.ipc.shared_memory import Region, unlink

POINTER_BYTES = 4096
LENGTH = struct.Struct("<Q")
READ_TRIES = 1000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ClusterImage).decode


def image_region_name(instance: str, version: int) -> str:
    return f"/{instance}-image-{version}"


class ImagePublisher:
    """The controller's side. One per instance."""

    __slots__ = ("_cells", "_instance")

    def __init__(self, instance: str, pointer: memoryview) -> None:
        self._instance = instance
        self._cells = pointer.cast("B").cast("q")

    @property
    def version(self) -> int:
        return self._cells[0]

    def publish(self, image: ClusterImage) -> None:
        """Makes `image` current; its version must be the next one."""
        if image.version <= self.version:
            raise ApplianceDefect(f"image version {image.version} does not follow {self.version}")
        data = _encode(image)
        name = image_region_name(self._instance, image.version)
        unlink(name)  # a controller that died between writing and pointing left it
        region = Region.create(name, LENGTH.size + len(data))
        LENGTH.pack_into(region.view, 0, len(data))
        region.view[LENGTH.size : LENGTH.size + len(data)] = data
        region.close()
        previous = self.version
        self._cells[0] = image.version
        unlink(image_region_name(self._instance, previous - 1))


class ImageReader:
    """Any process's side: `current()` decodes only when the version moved."""

    __slots__ = ("_cells", "_image", "_instance")

    def __init__(self, instance: str, pointer: memoryview) -> None:
        self._instance = instance
        self._cells = pointer.cast("B").cast("q")
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
        for _ in range(READ_TRIES):
            version = self._cells[0]
            if version == 0:
                return None
            try:
                region = Region.open(image_region_name(self._instance, version))
            except HostFault:
                continue
            try:
                (length,) = LENGTH.unpack_from(region.view, 0)
                self._image = _decode(region.view[LENGTH.size : LENGTH.size + length])
            finally:
                region.close()
            return self._image
        raise ApplianceDefect("the metadata image moves faster than it can be read")
