"""`appliance export`: topics as files for others, read straight off the disk."""

from __future__ import annotations

from typing import Final

from appliance.cli.program import LazyCommand, LazyGroup

COMMANDS: Final = {
    "segments": LazyCommand(
        "appliance.cli.export_segments",
        "segments",
        "Link or copy a topic's closed segments, with a manifest.",
    ),
    "parquet": LazyCommand(
        "appliance.cli.export_parquet", "parquet", "Write a topic's records to Parquet files, by date."
    ),
}

export = LazyGroup(
    name="export",
    lazy=COMMANDS,
    help="Write topics to files, read straight off the disk: no broker need run.",
    short_help="Write topics to files for others.",
)
