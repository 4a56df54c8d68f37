"""`appliance log verify`: whether the replicas of a partition are alike, straight off the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from appliance.cli.copy_repair import Repair, repair
from appliance.cli.output import json_option, print_json, print_table, shown_bytes
from appliance.cli.replica_comparison import Comparison, Replica, compare, replicas_under
from appliance.cluster import TopicPartition
from appliance.config import load_settings
from appliance.control.supervisor.data_directory import DataDirectory
from appliance.errors import OperatorFault
from appliance.log.file_names import parse_partition_directory_name

RUN_FILE = "run.json"


@click.command(short_help="Compare the replicas of partitions, byte for byte.")
@click.argument("names", metavar="[TOPIC|TOPIC-PARTITION]...", nargs=-1)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="The data directory.",
)
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The configuration file; needed if it sets log.dirs and the appliance does not run.",
)
@click.option(
    "--repair",
    "repairs_them",
    is_flag=True,
    help="First repair damaged replicas from whole ones. The appliance must be stopped.",
)
@click.option(
    "--complete", is_flag=True, help="Also report a replica as different if it ends before the others."
)
@json_option
def verify(
    *,
    names: tuple[str, ...],
    data_dir: Path,
    config_path: Path | None,
    repairs_them: bool,
    complete: bool,
    as_json: bool,
) -> int:
    """Compare the replicas of the named partitions, or of all partitions, byte for byte.

    The command reads the disk and needs no broker; the appliance may run. It compares offsets that all replicas have.
    A follower that has not copied the last records yet is `behind`. The exit code is 1 if anything differs.

    With --repair the command checks every checksum of every replica, and replaces a damaged batch
    with the same batch of an undamaged replica. The command keeps the replaced bytes in the directory `recovered` of
    the partition. If compaction has made the replicas differ, the command replaces a damaged replica with a copy of an
    undamaged one. The exit code is 1 if damage is left.
    """
    if not data_dir.is_dir():
        raise OperatorFault(f"{data_dir}: no such directory")
    found = _chosen(replicas_under(_log_directories(data_dir, config_path)), names)
    repairs = _repaired(data_dir, found) if repairs_them else []
    comparisons = [_compared(partition, replicas) for partition, replicas in found.items()]
    if as_json:
        print_json(
            {
                "partitions": [_facts(each) for each in comparisons],
                "repairs": [_repair_facts(each) for each in repairs],
            }
        )
    else:
        for each in repairs:
            click.echo(f"{each.partition}: slot {each.slot}, offset {each.offset}: {each.outcome}")
        _print(comparisons)
    if repairs_them:
        # Replicas that differ still are made alike by the next start.
        return 0 if all(each.is_done for each in repairs) else 1
    different = [each for each in comparisons if each.difference is not None]
    behind = [each for each in comparisons if not each.is_complete]
    return 1 if different or (complete and behind) else 0


def _repaired(data_dir: Path, found: dict[TopicPartition, list[Replica]]) -> list[Repair]:
    held = DataDirectory.hold(data_dir, patience_ms=0)
    try:
        return [each for partition, replicas in found.items() for each in repair(partition, replicas)]
    except OSError as error:
        raise OperatorFault(f"{error.filename}: {error.strerror}") from error
    finally:
        os.close(held.lock)


def _repair_facts(each: Repair) -> dict[str, object]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "slot": each.slot,
        "offset": each.offset,
        "outcome": each.outcome,
        "done": each.is_done,
    }


def _compared(partition: TopicPartition, replicas: Sequence[Replica]) -> Comparison:
    try:
        return compare(partition, replicas)
    except OSError as error:
        raise OperatorFault(f"{partition}: {error.filename}: {error.strerror}") from error


def _log_directories(data_dir: Path, config_path: Path | None) -> dict[int, list[Path]]:
    """Return slot → its log directories: as the appliance that runs says, else as the file says, else slot-0, slot-1, …

    A data directory that was copied from a running or killed appliance has that one's run file. It names the log
    directories of the original, which must not be repaired in place of the copy.
    """
    try:
        run = json.loads((data_dir / RUN_FILE).read_text(encoding="utf-8"))
        if Path(run["data_dir"]) == data_dir.resolve():
            return {slot: [Path(path) for path in paths] for slot, paths in enumerate(run["log_dirs"])}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    settings = load_settings(config_path, {"data.dir": str(data_dir)})
    if settings.log_dirs is not None:
        return {slot: list(settings.log_directories(slot)) for slot in range(settings.slots)}
    return {
        int(number): [path]
        for path in sorted(data_dir.glob("slot-*"))
        if (number := path.name.removeprefix("slot-")).isdigit()
    }


def _chosen(
    found: dict[TopicPartition, list[Replica]], names: Sequence[str]
) -> dict[TopicPartition, list[Replica]]:
    """Those that are named; all without names. Raises OperatorFault where a name is none of them."""
    if not names:
        return found
    topics = {partition.topic for partition in found}
    chosen: dict[TopicPartition, list[Replica]] = {}
    for name in names:
        partition = parse_partition_directory_name(name)
        if name in topics:
            chosen |= {each: replicas for each, replicas in found.items() if each.topic == name}
        elif partition in found and partition is not None:
            chosen[partition] = found[partition]
        else:
            raise OperatorFault(f"{name}: no such topic or partition on the disk")
    return chosen


def _facts(comparison: Comparison) -> dict[str, object]:
    return {
        "topic": comparison.partition.topic,
        "partition": comparison.partition.partition,
        "verdict": comparison.verdict,
        "difference": comparison.difference,
        "compared_from": comparison.start,
        "compared_to": comparison.end,
        "batches": comparison.batches,
        "size_bytes": comparison.size_bytes,
        "replicas": [
            {
                "slot": extent.slot,
                "directory": str(extent.directory),
                "log_start_offset": extent.start,
                "log_end_offset": extent.end,
            }
            for extent in comparison.extents
        ],
    }


def _print(comparisons: Sequence[Comparison]) -> None:
    rows = [
        (
            str(each.partition),
            ",".join(str(extent.slot) for extent in each.extents),
            each.start,
            each.end,
            each.batches,
            shown_bytes(each.size_bytes),
            each.verdict,
        )
        for each in comparisons
    ]
    print_table(
        ("PARTITION", "SLOTS", "FROM", "TO", "BATCHES", "SIZE", "VERDICT"),
        rows,
        right=("FROM", "TO", "BATCHES", "SIZE"),
    )
    for each in comparisons:
        if each.difference is not None:
            click.echo(f"{each.partition}: {each.difference}")
        elif not each.is_complete:
            ends = ", ".join(f"slot {extent.slot} at {extent.end}" for extent in each.extents)
            click.echo(f"{each.partition}: {ends}")
    differ = sum(each.difference is not None for each in comparisons)
    behind = sum(each.verdict == "behind" for each in comparisons)
    click.echo(f"{len(comparisons)} partitions: {differ} differ, {behind} behind")
