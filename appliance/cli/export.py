"""`appliance export`: topics as files for others, read straight off the disk."""

from __future__ import annotations

from typing import Final

from appliance.cli.program import LazyCommand, LazyGroup

COMMANDS: Final = {
    "segments": LazyCommand(
        "appliance.cli.export_segments",
        "segments",
        "Export a topic's closed segments, with a manifest.",
    ),
    "parquet": LazyCommand(
        "appliance.cli.export_parquet", "parquet", "Write a topic's records to Parquet files, by date."
    ),
}

export = LazyGroup(
    name="export",
    lazy=COMMANDS,
    help="Export topics to files. The command reads the disk and needs no broker.",
    short_help="Export topics to files.",
)
