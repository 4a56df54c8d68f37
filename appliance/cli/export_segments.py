"""`appliance export segments`: a topic's closed segments as files of their own, or objects, with a manifest."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from appliance.cli.options import data_dirs_option, data_paths
from appliance.cli.output import json_option, print_json, shown_bytes
from appliance.errors import ConfigurationError, OperatorFault


@click.command(short_help="Link or copy a topic's closed segments, with a manifest.")
@click.argument("topic")
@click.option(
    "--to",
    metavar="DIR|ADDRESS",
    required=True,
    help="Where to: a directory, or s3://…, gs://…, file://…. Given again, it takes what was closed since.",
)
@data_dirs_option
@click.option("--copy", is_flag=True, help="Copy even where links would do.")
@click.option(
    "--no-read-back",
    is_flag=True,
    help="Go by the size of what was sent to an address; do not read it again.",
)
@json_option
def segments(
    *, topic: str, to: str, data_dirs: tuple[str, ...], copy: bool, no_read_back: bool, as_json: bool
) -> None:
    """Bring DIR up to the closed segments of TOPIC: a directory of each partition, and TOPIC.manifest.json.

    Nothing in it changes afterwards but what is added, so it can be shipped while it grows. The Spark source, and any
    reader off the disk, reads DIR as it reads the data directory. What is written to now, and what belongs to a
    transaction under way, comes with a later run.

    An address is written through pyarrow, with its credentials (AWS_ACCESS_KEY_ID, …); each segment is read back and
    held against its checksum, and the manifest comes last. Killed at any time, the same command goes on.
    """
    from spark_connector.storage import is_address, shown

    paths = data_paths(data_dirs)
    if is_address(to):
        if find_spec("pyarrow") is None:
            raise OperatorFault(
                "pyarrow is not installed, and addresses need it. In a clone of the appliance: pip install '.[spark]'"
            )
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
        f"{result.new_segments} segments taken, {shown_bytes(result.new_bytes)};"
        f" {shown_bytes(result.size_bytes)} in all: {place}"
    )


def _directory(to: str) -> Path:
    """Raises ConfigurationError: it is a file."""
    path = Path(to).resolve()
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"{path} is no directory")
    return path
