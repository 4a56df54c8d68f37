"""Segments held open for sending.

A segment that is being sent stays readable because this process holds it open, whatever the owner does with its
name. Descriptors are few and shared: one per (partition incarnation, segment), the least recently used closed first,
never one that a response still needs; where the system gives no more of them, all that none needs. The owners tell when
they have removed files (`Op.FILES_REMOVED`).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final

from appliance.cluster import TopicPartition
from appliance.log.faults import NO_DESCRIPTORS
from appliance.log.file_names import LOG, OFFSET_INDEX, partition_directory_name, segment_file_name
from appliance.requests.segment_replaced import SegmentReplaced
from appliance.requests.topic_routes import PartitionRoute

OPEN_FILES_MAX: Final = 1024
"""Of segments and of their indexes together."""

Key = tuple[int, int, int, int]


class SegmentFile:
    """An open segment; `holders` counts the responses that will still send from it.

    `index_fd` is its `.index`, -1 until somebody goes on in it by himself (`cursors`).
    """

    __slots__ = ("dropped", "fd", "holders", "index_fd", "version")

    def __init__(self, fd: int, version: int = 0) -> None:
        self.fd = fd
        self.index_fd = -1
        self.version = version
        self.holders = 0
        self.dropped = False

    def release(self) -> None:
        """One response less; the last one closes a descriptor that the cache has let go of."""
        self.holders -= 1
        if self.dropped and not self.holders:
            self.close()

    def close(self) -> None:
        """Its descriptors may be another file's from now on."""
        os.close(self.fd)
        if self.index_fd >= 0:
            os.close(self.index_fd)
        self.fd = self.index_fd = -1


class SegmentFiles:
    """The open segments of one network process.

    Args:
        directories: the log directories of each slot.
        is_served: whether a route's incarnation is the one its owner serves now.
        version: the files version of a route's partition: as long as it stands, a name means one file.
    """

    __slots__ = ("_directories", "_indexes", "_is_served", "_limit", "_open", "_version")

    def __init__(
        self,
        directories: dict[int, tuple[Path, ...]],
        *,
        is_served: Callable[[PartitionRoute], bool],
        version: Callable[[PartitionRoute], int] = lambda _: 0,
        limit: int = OPEN_FILES_MAX,
    ) -> None:
        self._version = version
        self._directories = directories
        self._is_served = is_served
        self._limit = limit
        self._open: OrderedDict[Key, SegmentFile] = OrderedDict()
        self._indexes = 0

    def hold(
        self, route: PartitionRoute, segment_base_offset: int, directory: int = 0, *, version: int = 0
    ) -> SegmentFile:
        """The segment in the slot's log directory of that index, held for one response until its `release`.

        Args:
            version: the files version from before the owner was asked; its answer speaks of that file.

        Raises:
            SegmentReplaced: it is another file by now.
            OSError: the file is gone (topic deleted, segment retired) or cannot be opened.
        """
        key = (route.row, route.incarnation, segment_base_offset, directory)
        self.expect(route, version=version)
        held = self._open.get(key)
        if held is not None and held.version != version:
            self._drop(key)
            held = None
        if held is None:
            path = self.directory_of(route, directory) / segment_file_name(segment_base_offset, LOG)
            fd = self._open_file(path, route, version=version)
            held = self._open[key] = SegmentFile(fd, version)
            self._drop_oldest()
        else:
            self._open.move_to_end(key)
        held.holders += 1
        return held

    def index_of(
        self, held: SegmentFile, route: PartitionRoute, segment_base_offset: int, directory: int
    ) -> int:
        """The descriptor of the `.index` of a segment that is held; it is closed with the segment.

        Raises:
            SegmentReplaced: it is another segment's by now.
            OSError: it is gone or cannot be opened.
        """
        if held.index_fd < 0:
            path = self.directory_of(route, directory) / segment_file_name(segment_base_offset, OFFSET_INDEX)
            held.index_fd = self._open_file(path, route, version=held.version)
            if not held.dropped:
                self._indexes += 1
                self._drop_oldest()
        return held.index_fd

    def _open_file(self, path: Path, route: PartitionRoute, *, version: int) -> int:
        """The descriptor of what was under that name at that files version."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self._let_go_of_unused():
                raise
            fd = os.open(path, flags)
        if not self._is_served(route):
            # Its owner withdraws a partition before it touches the files: this one may be a successor's.
            os.close(fd)
            raise FileNotFoundError(f"{path} is no longer of this partition")
        if self._version(route) != version:
            os.close(fd)
            raise SegmentReplaced(f"{path} was replaced while it was opened")
        return fd

    def expect(self, route: PartitionRoute, *, version: int) -> None:
        """Proves that since `version` was read no file of the partition has come to mean another.

        Raises:
            SegmentReplaced: one may have.
        """
        if self._version(route) != version:
            raise SegmentReplaced(f"segments of {route.topic}-{route.partition}")

    def directory_of(self, route: PartitionRoute, directory: int) -> Path:
        """Where the files of a partition lie; `directory` is the number of its log directory."""
        partition = partition_directory_name(TopicPartition(route.topic, route.partition))
        return self._directories[route.leader][directory] / partition

    def retain(self, living: Container[tuple[int, int]]) -> None:
        """Lets go of the segments of every partition whose (row, incarnation) is not in `living`."""
        for key in [key for key in self._open if key[:2] not in living]:
            self._drop(key)

    def let_go_of_removed(self) -> None:
        """Lets go of every segment whose file has no name any more: its room comes back when nobody sends from it."""
        for key, segment in list(self._open.items()):
            if not os.fstat(segment.fd).st_nlink:
                self._drop(key)

    def _let_go_of_unused(self) -> bool:
        """Gives back what no response needs; whether there was any."""
        unused = [key for key, segment in self._open.items() if not segment.holders]
        for key in unused:
            self._drop(key)
        return bool(unused)

    def _drop_oldest(self) -> None:
        while len(self._open) + self._indexes > self._limit:
            self._drop(next(iter(self._open)))

    def _drop(self, key: Key) -> None:
        segment = self._open.pop(key)
        segment.dropped = True
        if segment.index_fd >= 0:
            self._indexes -= 1
        if not segment.holders:
            segment.close()

    def close(self) -> None:
        for key in list(self._open):
            self._drop(key)

    def statistics(self) -> dict[str, int]:
        return {
            "open": len(self._open) + self._indexes,
            "held": sum(segment.holders > 0 for segment in self._open.values()),
        }
