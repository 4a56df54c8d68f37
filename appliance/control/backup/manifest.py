"""The manifest of a backup: what it holds, from which moment, and where each byte of it is stored.

    TARGET/
        backups/<id>.json                        a manifest; written last, so it never names what is missing
        data/<topic>-<partition>/<file>.<position>.<id>    a piece of a file, in the backup that copied it first
        data/metadata/metadata.db.0.<id>           or zookeeper-tree.json.0.<id>

A segment is append-only, so a later backup stores only what was appended: a file is a list of *pieces*, one behind the
other, and a piece may be named by the manifests of many backups. A manifest is one line of JSON, and a second line with
the SHA-256 of the first. Files of a few kilobytes are in the manifest itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec

from appliance.errors import CorruptFile

VERSION: Final = 1
TREE_VERSION: Final = 2
"""Of a backup whose metadata are a tree for ZooKeeper, because a version that reads 1 only would restore it without."""
BACKUPS: Final = "backups"
DATA: Final = "data"
SUFFIX: Final = ".json"
METADATA: Final = "metadata.db"
TREE: Final = "zookeeper-tree.json"
INLINE_BYTES_MAX: Final = 4096

_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z")
_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,255}")
_OBJECT: Final = re.compile(rf"{DATA}/{_NAME.pattern}/[A-Za-z0-9._-]+\.[0-9]+\.{_ID.pattern}")


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A run of bytes of a file, stored as one object. `path` is relative to the target."""

    path: str
    length_bytes: int
    sha256: str


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """By what a source file is recognized in the next backup, without reading it.

    Compaction gives a new file the modification time of the old one, and file systems give its inode to a later file.
    So `changed_ns` (ctime) is part of it, and `generation`, which changes when compaction has put other files under the
    names of segments. `incarnation` changes when a log loses records. Both are those of the partition's state file.
    """

    device: int
    inode: int
    modified_ns: int
    incarnation: int
    changed_ns: int = 0
    generation: int = 0

    def is_unchanged(self, now: Mark) -> bool:
        """Whether the file is byte for byte as it was. `now`: its mark now."""
        was = (self.device, self.inode, self.modified_ns, self.changed_ns, self.incarnation)
        return was == (now.device, now.inode, now.modified_ns, now.changed_ns, now.incarnation)

    def is_appended(self, now: Mark) -> bool:
        """Whether a file that was appended to then is the same file. `now`: its mark now."""
        was = (self.device, self.inode, self.incarnation, self.generation)
        return was == (now.device, now.inode, now.incarnation, now.generation)


class StoredFile(msgspec.Struct, frozen=True):
    """A file as the backup has it: in `pieces`, or whole in `inline`.

    `is_open`: the owner appended to it at the time, so a later modification time means more bytes, not other ones.
    """

    name: str
    length_bytes: int
    pieces: tuple[Piece, ...] = ()
    inline: bytes | None = None
    mark: Mark | None = None
    is_open: bool = False


class StoredPartition(msgspec.Struct, frozen=True):
    """A partition: its records in `[log_start, high_watermark)`. `replicas` are the slots that get a copy of it."""

    topic: str
    partition: int
    topic_id: str
    replicas: tuple[int, ...]
    log_start: int
    high_watermark: int
    recovery_point: int
    files: tuple[StoredFile, ...]

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class Manifest(msgspec.Struct, frozen=True):
    """One backup. `files` are those of the data directory; `slots` has the `meta.properties` of each slot."""

    id: str
    cluster_id: str
    appliance: str
    created_ms: int
    files: tuple[StoredFile, ...]
    slots: dict[int, bytes]
    partitions: tuple[StoredPartition, ...]
    version: int = VERSION

    @property
    def length_bytes(self) -> int:
        """Bytes that a restore writes, with one replica of each partition."""
        return sum(each.length_bytes for each in self.all_files())

    def all_files(self) -> list[StoredFile]:
        """Every file, of the data directory first."""
        return [*self.files, *(file for partition in self.partitions for file in partition.files)]

    def pieces(self) -> list[Piece]:
        """Every stored object that the backup needs."""
        return [piece for file in self.all_files() for piece in file.pieces]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Manifest).decode


def encode(manifest: Manifest) -> bytes:
    """The content of the manifest's file."""
    line = _encode(manifest)
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def decode(content: bytes, path: str) -> Manifest:
    """Read a manifest.

    Args:
        path: for the message.

    Raises:
        CorruptFile: it is damaged, of an unknown version, or names files outside of the target or a directory.
    """
    line, _, digest = content.partition(b"\n")
    if hashlib.sha256(line).hexdigest().encode() != digest.strip():
        raise CorruptFile(f"{path} is damaged: its SHA-256 does not match")
    try:
        manifest = _decode(line)
    except msgspec.DecodeError as error:  # also of text that is no JSON, and of values of another type
        raise CorruptFile(f"{path} is no manifest of a backup: {error}") from error
    if manifest.version not in (VERSION, TREE_VERSION):
        raise CorruptFile(
            f"{path} has version {manifest.version}; this version reads {VERSION} and {TREE_VERSION}"
        )
    for file in manifest.all_files():
        if _NAME.fullmatch(file.name) is None:
            raise CorruptFile(f"{path} names a file {file.name!r}")
        pieces = sum(piece.length_bytes for piece in file.pieces)
        length = pieces if file.inline is None else len(file.inline)
        if length != file.length_bytes:
            raise CorruptFile(f"{path} has {length} bytes of {file.name} instead of {file.length_bytes}")
    for partition in manifest.partitions:
        if _NAME.fullmatch(partition.name) is None:
            raise CorruptFile(f"{path} names a partition {partition.name!r}")
        if not set(partition.replicas) & manifest.slots.keys():
            raise CorruptFile(
                f"{path} has no slot of partition {partition.name}, so it would not be restored"
            )
    for piece in manifest.pieces():
        folder, _, name = piece.path.removeprefix(f"{DATA}/").partition("/")
        if not piece.path.startswith(f"{DATA}/") or not (_NAME.fullmatch(folder) and _NAME.fullmatch(name)):
            raise CorruptFile(f"{path} names an object {piece.path!r}")
    return manifest


def manifest_path(id: str) -> str:
    """Where the manifest of a backup is in its target."""
    return f"{BACKUPS}/{id}{SUFFIX}"


def is_object_path(path: str) -> bool:
    """Whether a backup gives such paths to its objects. Nothing else in a target is ever removed."""
    return _OBJECT.fullmatch(path) is not None


def moment_of(id: str) -> int:
    """The milliseconds since 1970 that an id stands for."""
    at = datetime.strptime(id, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    return int(at.timestamp()) * 1000 + at.microsecond // 1000


def id_at(at_ms: int) -> str:
    """The id of a backup of this moment, in milliseconds since 1970."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{at_ms % 1000:03d}Z"


def id_after(ids: Sequence[str], at_ms: int) -> str:
    """The id of a new backup: by the clock, but above all that there are, because the newest id is the newest backup.

    A clock that was set back would otherwise let `prune` remove the backup that was just taken.
    """
    return id_at(max([at_ms, *(moment_of(id) + 1 for id in ids)]))


def id_of(name: str) -> str | None:
    """The id of the backup whose manifest's file has this name; None for any other file."""
    id = name.removesuffix(SUFFIX)
    if name.endswith(SUFFIX) and _ID.fullmatch(id):
        with suppress(ValueError):  # the 31st of February
            moment_of(id)
            return id
    return None
