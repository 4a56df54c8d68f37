"""The audit journal (docs/audit-log.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

AUTHENTICATIONS: Final = "authentications"
REFUSALS: Final = "refusals"
CHANGES: Final = "changes"
EVENTS: Final = (AUTHENTICATIONS, REFUSALS, CHANGES)

_MIB: Final = 2**20
_DIRECTORY: Final = "audit"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What is recorded, where, and how much of it is kept."""

    events: tuple[str, ...] = option(
        (),
        "audit.log.events",
        doc="The events that the audit journal records, separated by commas: authentications, refusals, "
        "changes. If the option is empty, there is no audit journal. See docs/audit-log.md.",
    )
    directory: str = option(
        _DIRECTORY,
        "audit.log.dir",
        doc="Directory of the journal's files, which only the user of the appliance can read. A relative path is "
        "below data.dir.",
    )
    file_bytes: int = option(
        16 * _MIB,
        "audit.log.file.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=65_536,
        doc="Size at which the audit journal begins another file.",
    )
    files_max: int = option(
        10,
        "audit.log.files.max",
        unit="files",
        minimum=2,
        maximum=1_000,
        doc="Maximum number of files of the audit journal. When the appliance begins another file, it "
        "deletes the oldest file.",
    )
    repeats_max: int = option(
        60,
        "audit.log.repeats.max",
        unit="entries",
        minimum=1,
        maximum=1_000_000,
        doc="Maximum number of audit entries that one network process records for one principal in a "
        "minute. The maximum applies separately to refusals, authentications, and offset commits by tools. "
        "The journal also has the number of further entries.",
    )
    to_topic: bool = option(
        False,
        "audit.log.topic",
        doc="Whether the appliance also appends the entries to the internal topic __audit_log.",
    )
    topic_retention_ms: int = option(
        7 * 24 * 3_600_000,
        "audit.log.topic.retention.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=60_000,
        doc="retention.ms of the topic __audit_log when the appliance creates it.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.events:
            if name not in EVENTS:
                raise ConfigurationError(
                    f"audit.log.events = {','.join(self.events)!r}: {name!r} is none of {', '.join(EVENTS)}"
                )
        if not self.directory:
            raise ConfigurationError("audit.log.dir must not be empty")

    @property
    def is_on(self) -> bool:
        """Whether there is a journal."""
        return bool(self.events)

    def path(self, data_dir: Path) -> Path:
        """Return the directory of the journal's files."""
        return data_dir / self.directory
