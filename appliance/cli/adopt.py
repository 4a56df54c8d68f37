"""`appliance adopt`: the log directories of a stopped Apache Kafka become a data directory of ours."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.output import json_option, print_json, print_table, shown_bytes
from appliance.clock import SystemClock
from appliance.config import load_settings
from appliance.errors import DiskFull, OperatorFault

if TYPE_CHECKING:
    from appliance.control.adoption.plan import AdoptionPlan


@click.command(short_help="Take over log directories of Apache Kafka.")
@click.argument(
    "directories",
    metavar="DIR...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
)
@click.option("--data-dir", metavar="DIR", help="The new data directory.  [default: ./data]")
@click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@click.option(
    "--copy", is_flag=True, help="Copy closed segments instead of linking them (needed across file systems)."
)
@click.option("--without", metavar="TOPIC", multiple=True, help="Leave this topic out; repeatable.")
@click.option("--fill-gaps", is_flag=True, help="Create missing partitions as empty partitions.")
@json_option
def adopt(
    *,
    directories: tuple[Path, ...],
    data_dir: str | None,
    dry_run: bool,
    copy: bool,
    without: tuple[str, ...],
    fill_gaps: bool,
    as_json: bool,
) -> int:
    """Take over the log directories (all log.dirs) of a stopped broker of Apache Kafka, 3.x or 4.x.

    The command changes nothing in them. Closed segments become hard links in the new data directory, and the rest is
    copied. To go back, start Kafka again. If the command is killed, run it again.
    """
    from appliance.control.adoption.carry_out import bytes_to_copy, carry_out
    from appliance.control.adoption.plan import plan_adoption
    from appliance.control.controller.takeover import new_id
    from appliance.control.supervisor.data_directory import DataDirectory
    from appliance.control.supervisor.permissions import PRIVATE_UMASK
    from appliance.log.kafka_directory import held, survey

    settings = load_settings(None, {"data.dir": data_dir} if data_dir is not None else {})
    target, slot_directory = settings.data_dir, settings.slot_directory(0)
    for directory in directories:
        if target.resolve() == directory or target.resolve() in directory.parents:
            raise OperatorFault(f"{directory} is inside the data directory {target}")
    with ExitStack() as holding:
        for directory in dict.fromkeys(directories):
            holding.enter_context(held(directory))
        plan = plan_adoption(
            [survey(directory) for directory in dict.fromkeys(directories)],
            without=without,
            fill_gaps=fill_gaps,
            new_id=new_id,
        )
        copied_bytes = bytes_to_copy(plan, copy=copy)
        if as_json:
            print_json(facts(plan, copied_bytes))
        else:
            _print(plan, copied_bytes)
        for refusal in plan.refusals:
            click.echo(f"appliance: refused: {refusal}", err=True)
        if plan.refusals:
            return 1
        if dry_run:
            return 0
        data = DataDirectory.hold(target, patience_ms=0)
        os.umask(PRIVATE_UMASK)
        try:
            room = os.statvfs(target)
            if copied_bytes > room.f_bavail * room.f_frsize:
                raise DiskFull(
                    f"{target}: {shown_bytes(copied_bytes)} must be copied, but there is not enough space"
                )
            carry_out(
                plan,
                target,
                slot_directory,
                copy=copy,
                clock=SystemClock(),
                say=lambda word: click.echo(f"adopted {word}", err=True),
            )
        finally:
            data.release()
    click.echo(f"appliance: done; start it with: appliance serve --data-dir {target}", err=True)
    return 0


def facts(plan: AdoptionPlan, copied_bytes: int) -> dict[str, object]:
    """The plan for programs."""
    return {
        "cluster_id": plan.cluster_id,
        "clean": plan.is_clean,
        "copied_bytes": copied_bytes,
        "first_producer_id": plan.first_producer_id,
        "topics": [
            {
                "name": topic.name,
                "topic_id": str(topic.topic_id),
                "configs": dict(topic.configs),
                "partitions": [
                    {
                        "partition": number,
                        "log_start_offset": found.log_start_offset if found else 0,
                        "log_end_offset": found.log_end_offset if found else 0,
                        "size_bytes": found.size_bytes if found else 0,
                        "leader_epoch": topic.leader_epochs[number],
                        "torn_bytes": found.torn_bytes if found else 0,
                    }
                    for number, found in enumerate(topic.partitions)
                ],
            }
            for topic in plan.topics
        ],
        "refusals": list(plan.refusals),
        "words": list(plan.words),
    }


def _print(plan: AdoptionPlan, copied_bytes: int) -> None:
    rows = [
        (
            topic.name,
            len(topic.partitions),
            sum(found.log_end_offset - found.log_start_offset for found in topic.found),
            shown_bytes(sum(found.size_bytes for found in topic.found)),
            max(topic.leader_epochs),
            " ".join(f"{name}={value}" for name, value in topic.configs.items()) or "-",
        )
        for topic in plan.topics
    ]
    print_table(
        ("TOPIC", "PARTITIONS", "OFFSETS", "SIZE", "EPOCH", "SETTINGS"),
        rows,
        right=("PARTITIONS", "OFFSETS", "SIZE", "EPOCH"),
    )
    stop = (
        "stopped cleanly"
        if plan.is_clean
        else "did not stop cleanly: the first start recovers its last segments"
    )
    click.echo(
        f"cluster {plan.cluster_id or '(new id)'}; the broker {stop}; {shown_bytes(copied_bytes)} to copy"
    )
    for word in plan.words:
        click.echo(f"- {word}")
