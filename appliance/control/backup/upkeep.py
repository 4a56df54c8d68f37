"""What is done with backups in a target: list them, verify them by digest, remove old ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from appliance.control.backup.manifest import (
    BACKUPS,
    DATA,
    Manifest,
    Piece,
    decode,
    id_of,
    is_object_path,
    manifest_path,
)
from appliance.control.backup.target import Target
from appliance.errors import CorruptFile, OperatorFault, StorageFault

CHECK_EVERY: Final = 100
"""Objects that `prune` removes between two looks at its right to."""


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that does not hold what a manifest says. `backups` are the ids of those that need it."""

    path: str
    reason: str
    backups: tuple[str, ...]


def ids(target: Target) -> list[str]:
    """The ids of the complete backups in a target, oldest first."""
    names = (name.rpartition("/")[2] for name in target.sizes(BACKUPS))
    return sorted(id for id in map(id_of, names) if id is not None)


def read_manifest(target: Target, id: str) -> Manifest:
    """The manifest of a backup.

    Raises:
        OperatorFault: there is no such backup. CorruptFile: its manifest is damaged. StorageFault: it cannot be read.
    """
    path = manifest_path(id)
    try:
        content = b"".join(target.read(path))
    except FileNotFoundError:
        raise OperatorFault(f"{target.shown} has no backup {id}; see `appliance backup list`") from None
    return decode(content, f"{target.shown}/{path}")


def newest(target: Target) -> Manifest | None:
    """The manifest of the newest backup whose manifest is not damaged; None where there is none."""
    for id in reversed(ids(target)):
        try:
            return read_manifest(target, id)
        except CorruptFile:
            continue
    return None


def verify(target: Target, wanted: Iterable[str]) -> tuple[int, list[Damage]]:
    """Read every object of some backups, once each, and compare its length and SHA-256.

    A file that the disk cannot read is damaged, and the others are read all the same.

    Returns:
        the bytes that were read, and what is damaged or missing.

    Raises:
        StorageFault: the target as a whole cannot be read. OperatorFault: there is no such backup.
    """
    found: list[Damage] = []
    users: dict[Piece, list[str]] = {}
    for id in wanted:
        try:
            for piece in read_manifest(target, id).pieces():
                users.setdefault(piece, []).append(id)
        except CorruptFile as fault:
            found.append(Damage(manifest_path(id), str(fault), (id,)))
        except StorageFault as fault:
            target.sizes(BACKUPS)
            found.append(Damage(manifest_path(id), f"cannot be read: {fault}", (id,)))
    total = 0
    for piece, backups in users.items():
        reason, length = check_piece(target, piece)
        total += length
        if reason:
            found.append(Damage(piece.path, reason, tuple(backups)))
    return total, found


def check_piece(target: Target, piece: Piece) -> tuple[str, int]:
    """What is wrong with an object (empty: nothing), and how many bytes were read."""
    digest, length = hashlib.sha256(), 0
    try:
        for chunk in target.read(piece.path):
            digest.update(chunk)
            length += len(chunk)
    except FileNotFoundError:
        return "is missing", 0
    except StorageFault as fault:
        target.sizes(BACKUPS)  # raises if it is not this object alone
        return f"cannot be read: {fault}", length
    if length != piece.length_bytes:
        return f"has {length} bytes instead of {piece.length_bytes}", length
    return ("" if digest.hexdigest() == piece.sha256 else "has another SHA-256"), length


def prune(target: Target, keep: int) -> tuple[list[str], int]:
    """Remove all but the newest `keep` backups, and every object of a backup that no remaining manifest names.

    Files that no backup has written stay. Without any manifest nothing is removed.
    A manifest goes before its objects, so a prune that is killed leaves no backup that lacks some.

    Returns:
        the ids of the removed backups, and the number of removed objects.

    Raises:
        CorruptFile: a manifest that is to stay is damaged, so nobody knows what it names; nothing was removed.
    """
    every = ids(target)
    if not every:
        return [], 0
    removed, kept = every[: max(0, len(every) - keep)], every[max(0, len(every) - keep) :]
    needed = {piece.path for id in kept for piece in read_manifest(target, id).pieces()}
    target.check()
    for id in removed:
        target.remove(manifest_path(id))
    target.flush()
    orphans = [path for path in target.sizes(DATA) if path not in needed and is_object_path(path)]
    for number, path in enumerate(orphans):
        if number % CHECK_EVERY == 0:
            target.check()
        target.remove(path)
    return removed, len(orphans)
