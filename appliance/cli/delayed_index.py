"""The index of due times for `appliance delayed list|show`: the files of a services process on this machine.

The files only say where to look (`views/delayed_lookup.py`). Their names have the ids of the internal topics, so those
of another appliance are not taken for those of the one that answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from appliance.cli.cluster_view import first_that_answers
from appliance.cli.connecting import BrokerError
from appliance.cli.request import request
from appliance.cluster import DELAYED_STATE
from appliance.config.sections.services import INDEX_DIRECTORY
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from appliance.services.due_keys import index_name

if TYPE_CHECKING:
    from appliance.services.due_files import DueFiles

_VERSION = 4

index_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="The data directory of the broker, if it is on this machine, for the index of exact delays.  "
    "[default: as the broker says]",
)


class LocalIndex:
    """Args:
    directory: of index files; None if there is none here.
    why: why the index does not help, for people.
    """

    def __init__(self, directory: Path | None, why: str) -> None:
        self._directory = directory
        self.why = why

    def of(self, level: str, topic_id: UUID, partition: int, position: int) -> DueFiles | None:
        """Return what is known of the log of an exact level from a position on."""
        if self._directory is None:
            return None
        from appliance.services.due_files import due_files  # numpy

        try:
            return due_files(self._directory, index_name(level, partition, topic_id), position)
        except OSError as error:
            self.why = f"the index of due times cannot be read: {error}"
            self._directory = None
            return None


def local_index(bootstrap: str, data_dir: Path | None) -> LocalIndex:
    """Return the index of the broker at `bootstrap`. If it is not on this machine, it knows nothing, and says why."""
    try:
        found = [data_dir] if data_dir is not None else _data_dirs(bootstrap)
    except BrokerError as fault:
        return LocalIndex(
            None, f"the broker does not say where its data directory is ({fault}); give --data-dir"
        )
    for each in found:
        directory = each / INDEX_DIRECTORY
        try:
            if directory.is_dir():
                return LocalIndex(directory, "the index of due times does not have them yet")
        except OSError as error:
            return LocalIndex(None, f"the index of due times cannot be read: {error}")
    where = ", ".join(map(str, found))
    return LocalIndex(None, f"there is no index of due times on this machine in {where}")


def _data_dirs(bootstrap: str) -> list[Path]:
    """Return the directories above the log directories of one broker slot."""
    wanted = DescribeLogDirsRequest((DescribableLogDirTopic(DELAYED_STATE),))
    answer = request(first_that_answers(bootstrap), ApiKey.DESCRIBE_LOG_DIRS, _VERSION, wanted)
    return sorted({Path(result.log_dir).parent for result in answer.results if result.log_dir})
