"""Who may open what the appliance keeps on the disk: its own user, and one group of readers if the operator names it.

| | without `data.directory.group` | with it |
|---|---|---|
| data directory, log directories, partitions | 0700 | 0750, of that group |
| segments, indexes, checkpoints | 0600 | 0640, of that group |
| locks, metadata, `run.json`, `runtime-directory` | 0600 | 0600 |

New files get these modes by the umask, whatever umask the appliance was started with. A directory that exists is
checked at each start, before anything in it is opened:

0. Its path leads through a symbolic link of another user, who is not root: refused, because the link can lead to any
   directory. Everybody can make such a link in /tmp. If a directory above it lets another user rename what is in it,
   one line says so.
1. It belongs to another user, or everybody may write in it: refused, because what lies there may be forged.
2. It is ours and open to others: they lose their permissions, and one line says so. The root of a tree closes all of
   it, so files below it keep their modes; some are hard links of files that Apache Kafka owns (docs/adopting.md).
3. A group is configured and a log directory is not open to it yet: the whole tree is opened to the group, once.
   Files with several hard links are left as they are and counted, because a mode belongs to the file, not to its name.
   The root is changed last, so a start that is killed half-way does it again. Of the data directory itself only the
   root is opened, because what lies in it (metadata, sessions) is nobody else's.
"""

from __future__ import annotations

import grp
import logging
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.config import Settings
from appliance.errors import ConfigurationError, OperatorFault
from appliance.log.lock_file import mode_text, user_named

PRIVATE_UMASK: Final = 0o077
READERS_UMASK: Final = 0o027

_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_READERS_DIRECTORY: Final = 0o750
_READERS_FILE: Final = 0o640
_LOCK_PREFIX: Final = ".lock"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadersGroup:
    """The group that may read log directories. `is_own`: it is this process's own, so new files get it anyway."""

    name: str
    gid: int
    is_own: bool

    @property
    def directory_mode(self) -> int:
        """Mode of a directory; the set-group-ID bit hands the group on to what is created in it."""
        return _READERS_DIRECTORY if self.is_own else _READERS_DIRECTORY | stat.S_ISGID


def readers_group(settings: Settings) -> ReadersGroup | None:
    """Return the group of `data.directory.group`; None where none is configured.

    Raises:
        ConfigurationError: there is no such group on this host.
    """
    name = settings.data_directory_group
    if name is None:
        return None
    try:
        gid = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigurationError(f"data.directory.group = {name}: this host has no such group") from None
    return ReadersGroup(name, gid, gid == os.getegid())


def check_path(path: Path, what: str) -> None:
    """Refuse a path that another user leads elsewhere. Call it before anything is created at the path.

    Args:
        path: of a directory, which need not exist.
        what: what to call it in messages: "data directory".

    Raises:
        OperatorFault: a symbolic link in it belongs to another user than root and this one.
    """
    trusted = {0, os.geteuid()}
    there = Path(os.path.abspath(path))
    for step in (*reversed(there.parents), there):
        with suppress(OSError):
            found = os.lstat(step)
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in trusted:
                raise OperatorFault(
                    f"{what} {path}: {step} is a symbolic link of user {user_named(found.st_uid)}, who can make it lead"
                    f" anywhere: remove it, or name the directory itself"
                )
    for parent in Path(os.path.realpath(there)).parents:
        with suppress(OSError):
            found = os.lstat(parent)
            is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
            if is_open or found.st_uid not in trusted:
                who = "everybody" if is_open else f"user {user_named(found.st_uid)}"
                _logger.warning(
                    "%s %s: %s can rename what is in %s, and put another directory in its place (owner %s, mode %s)",
                    what,
                    path,
                    who,
                    parent,
                    user_named(found.st_uid),
                    mode_text(found.st_mode),
                )


def check_directory(path: Path, what: str, *, group: ReadersGroup | None, has_logs: bool) -> None:
    """Check the owner and the mode of an existing directory, and close it to others than `group`.

    Args:
        path: the root of a tree that the appliance keeps.
        what: what to call it in messages: "data directory".
        group: who may read; None for nobody else.
        has_logs: whether the group may read all that lies in it, and not only pass through.

    Raises:
        OperatorFault: it belongs to another user, everybody may write in it, or its group cannot be changed.
        OSError: it cannot be read.
    """
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        return  # whoever opens it says so
    user = os.geteuid()
    if found.st_uid != user:
        raise OperatorFault(
            f"{what} {path} belongs to user {user_named(found.st_uid)}, and the appliance runs as {user_named(user)}:"
            f" run it as {user_named(found.st_uid)}, or change the owner of all of it (chown -R)"
        )
    if found.st_mode & stat.S_IWOTH:
        raise OperatorFault(
            f"{what} {path} may be written by everybody (mode {mode_text(found.st_mode)}), so its contents may be"
            f" forged: look through it, then chmod 0700 {path}"
        )
    if group is not None:
        _open_to(group, path, what, found, has_logs=has_logs)
    elif found.st_mode & 0o077:
        os.chmod(path, _PRIVATE_DIRECTORY)
        _logger.warning(
            "%s %s had mode %s; it is now 0700, so other users cannot open it (see data.directory.group)",
            what,
            path,
            mode_text(found.st_mode),
        )


def check_log_directories(settings: Settings, group: ReadersGroup | None) -> None:
    """Check every log directory that exists, as `check_directory`. One that cannot be read is left to its worker.

    Raises:
        OperatorFault: as there.
    """
    for slot in range(settings.slots):
        for path in settings.log_directories(slot):
            if not path.is_relative_to(settings.data_dir):
                check_path(path, "log directory")
            with suppress(OSError):
                check_directory(path, "log directory", group=group, has_logs=True)


def make_files_private(directory: Path) -> None:
    """Take the permissions of others from the files (not the directories) in a data directory.

    Metadata, sessions, locks and `run.json` lie there: nobody else reads them, also where a group reads logs.
    """
    for entry in os.scandir(directory):
        if not entry.is_file(follow_symlinks=False):
            continue
        found = entry.stat(follow_symlinks=False)
        if found.st_mode & 0o077 and found.st_nlink == 1 and found.st_uid == os.geteuid():
            os.chmod(entry.path, _PRIVATE_FILE)


def _open_to(group: ReadersGroup, root: Path, what: str, found: os.stat_result, *, has_logs: bool) -> None:
    wanted = group.directory_mode
    if found.st_gid == group.gid and stat.S_IMODE(found.st_mode) == wanted:
        return
    try:
        linked = _open_tree(group, root) if has_logs else 0
        os.chown(root, -1, group.gid)
        os.chmod(root, wanted)
    except PermissionError as error:
        raise OperatorFault(
            f"{what} {root} cannot be given to the group {group.name} ({error.filename}: {error.strerror}): the"
            f" appliance's user must be a member of it; under systemd set Group={group.name} in the unit"
        ) from error
    _logger.info("%s %s can now be read by the group %s", what, root, group.name)
    if linked:
        _logger.warning(
            "%s %s: %d files have other hard links (perhaps in a directory of Apache Kafka) and keep their modes;"
            " members of the group %s may be unable to read them",
            what,
            root,
            linked,
            group.name,
        )


def _open_tree(group: ReadersGroup, root: Path) -> int:
    """Open what lies in `root`, but not `root` itself, to the group. Return how many files keep their modes."""
    linked = 0
    for folder, directories, files in os.walk(root):
        for name in files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if name.startswith(_LOCK_PREFIX) or not stat.S_ISREG(status.st_mode):
                continue
            if status.st_nlink > 1:
                linked += 1
                continue
            os.chown(path, -1, group.gid, follow_symlinks=False)
            os.chmod(path, _READERS_FILE)
        for name in directories:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chown(path, -1, group.gid)
                os.chmod(path, group.directory_mode)
    return linked
