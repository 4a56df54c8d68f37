"""`appliance export segments`: a topic's closed segments as files of their own, with a manifest."""

from __future__ import annotations

from pathlib import Path

import click

from appliance.cli.options import data_dirs_option, data_paths
from appliance.cli.output import json_option, print_json, shown_bytes


@click.command(short_help="Link or copy a topic's closed segments, with a manifest.")
@click.argument("topic")
@click.option(
    "--to",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    help="Where to. Given again, it takes what was closed since.",
)
@data_dirs_option
@click.option("--copy", is_flag=True, help="Copy even where links would do.")
@json_option
def segments(*, topic: str, to: Path, data_dirs: tuple[str, ...], copy: bool, as_json: bool) -> None:
    """Bring DIR up to the closed segments of TOPIC: a directory of each partition, and TOPIC.manifest.json.

    Nothing in it changes afterwards but what is added, so it can be shipped while it grows. The Spark source, and any
    reader off the disk, reads DIR as it reads the data directory. What is written to now, and what belongs to a
    transaction under way, comes with a later run.
    """
    from spark_connector.segment_export import export_segments

    paths = data_paths(data_dirs)
    result = export_segments(topic, paths=paths, to=to, copy=copy)
    facts = {
        "topic": topic,
        "to": str(to),
        "new_segments": result.new_segments,
        "new_bytes": result.new_bytes,
        "bytes": result.size_bytes,
        "partitions": {str(each.partition): each.end_offset for each in result.partitions},
    }
    if as_json:
        print_json(facts)
        return
    click.echo(
        f"{result.new_segments} segments taken, {shown_bytes(result.new_bytes)};"
        f" {shown_bytes(result.size_bytes)} in all: {to}"
    )
