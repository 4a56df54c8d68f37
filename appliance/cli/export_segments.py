"""`appliance export segments`: a topic's closed segments as files of their own, or objects, with a manifest."""

from __future__ import annotations

from pathlib import Path

import click

from appliance.cli.options import data_dirs_option, data_paths
from appliance.cli.output import json_option, print_json, shown_bytes
from appliance.errors import ConfigurationError
from appliance.extras import need


@click.command(short_help="Export a topic's closed segments, with a manifest.")
@click.argument("topic")
@click.option(
    "--to",
    metavar="DIR|ADDRESS",
    required=True,
    help="Target: a directory, or s3://…, gs://…, file://…. A later run adds segments that were closed since.",
)
@data_dirs_option
@click.option("--copy", is_flag=True, help="Copy files instead of linking them.")
@click.option(
    "--no-read-back",
    is_flag=True,
    help="Check only the size of uploaded segments; do not read them back.",
)
@json_option
def segments(
    *, topic: str, to: str, data_dirs: tuple[str, ...], copy: bool, no_read_back: bool, as_json: bool
) -> None:
    """Export the closed segments of TOPIC to DIR: one directory for each partition, and TOPIC.manifest.json.

    Exported files do not change; later runs only add files, so DIR can be copied at any time. The Spark source, and any
    other reader of the disk, reads DIR like the data directory. The active segment, and segments of an open
    transaction, are exported by a later run.

    With an address (s3://…), the command writes through pyarrow. It takes the credentials from the environment
    (AWS_ACCESS_KEY_ID, …). It reads each segment back and compares its checksum. It writes the manifest last. If the
    command is killed, run it again.
    """
    from spark_connector.storage import is_address, shown

    paths = data_paths(data_dirs)
    if is_address(to):
        need("pyarrow", needed_by="an export to an address")
        from spark_connector.object_export import export_objects

        result = export_objects(topic, paths=paths, to=to, reads_back=not no_read_back)
        place = shown(to)
    else:
        from spark_connector.segment_export import export_segments

        place = str(_directory(to))
        result = export_segments(topic, paths=paths, to=Path(place), copy=copy)
    facts = {
        "topic": topic,
        "to": place,
        "new_segments": result.new_segments,
        "new_bytes": result.new_bytes,
        "bytes": result.size_bytes,
        "partitions": {str(each.partition): each.end_offset for each in result.partitions},
    }
    if as_json:
        print_json(facts)
        return
    click.echo(
        f"{result.new_segments} segments exported, {shown_bytes(result.new_bytes)};"
        f" {shown_bytes(result.size_bytes)} in all: {place}"
    )


def _directory(to: str) -> Path:
    """Raises ConfigurationError: it is a file."""
    path = Path(to).resolve()
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"{path} is not a directory")
    return path
