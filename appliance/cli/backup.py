"""`appliance backup`: take a backup (also without a word for it), list, verify and prune backups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.confirming import require_yes, yes_option
from appliance.cli.ended_by_signal import ends_by_signal
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table, shown_bytes
from appliance.errors import OperatorFault, StorageFault

if TYPE_CHECKING:
    from appliance.control.backup.manifest import Manifest
    from appliance.metrics.backup_page import Success

CREATE: Final = "create"


class _CreateByDefault(click.Group):
    """A group whose first command needs no name: `backup DATA_DIR TARGET` is `backup create DATA_DIR TARGET`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not {"-h", "--help"} & set(args[:1]):
            args = [CREATE, *args]
        return super().parse_args(ctx, args)


target_argument = click.argument("target", metavar="TARGET")


@click.group(cls=_CreateByDefault, short_help="Back up an appliance; list, verify and prune backups.")
def backup() -> None:
    """Back up an appliance: `appliance backup DATA_DIR TARGET`.

    TARGET is a directory, or the address of an object store such as s3://bucket/backups. `appliance restore` writes a
    backup into a new data directory.
    """


@backup.command(name=CREATE)
@click.argument("places", metavar="[DATA_DIR] TARGET", nargs=-1, required=True)
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", help="Then remove all but the newest N backups."
)
@click.option(
    "--metrics",
    "metrics_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE what the backup came to, for Prometheus (textfile collector of node_exporter).",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT/CHROOT",
    help="Where the metadata are, if they are in ZooKeeper.  [default: as the running appliance says]",
)
@json_option
@client_options
def create(
    *,
    places: tuple[str, ...],
    keep: int | None,
    metrics_file: Path | None,
    zookeeper: str | None,
    as_json: bool,
    bootstrap: str,
) -> int:
    """Back up the appliance on DATA_DIR into TARGET. Without DATA_DIR, the one that answers at --bootstrap.

    The appliance may run, and clients may continue. The backup holds metadata, records, committed offsets and
    transactions of one moment. A later backup into the same TARGET stores only what is new. Run the command on the same
    host, as the appliance's own user or as root.
    """
    from appliance.control.backup.take import take_backup
    from appliance.control.backup.target import directory_of, open_target
    from appliance.control.backup.upkeep import prune
    from appliance.metrics.backup_page import Success

    if len(places) > 2:
        raise click.UsageError("give DATA_DIR and TARGET, or TARGET alone")
    place = places[-1]
    with ends_by_signal(), _measured(metrics_file, place) as successes:
        data_dir = Path(places[0]) if len(places) == 2 else _data_directory_at(bootstrap)
        if not data_dir.is_dir():
            # Before the target is made: of two names in the wrong order, nothing is left.
            raise OperatorFault(f"{data_dir}: no such directory")
        directory = directory_of(place)
        if directory is not None:
            _refuse_inside(directory, data_dir)
        target = open_target(place, writes=True, say=_say)
        try:
            taken = take_backup(data_dir, target, zookeeper=zookeeper, say=_say)
            manifest = taken.manifest
            successes.append(
                Success(taken.elapsed_s, manifest.length_bytes, taken.copied_bytes, len(manifest.partitions))
            )
            removed = prune(target, keep)[0] if keep is not None else []
        finally:
            target.close()
    if as_json:
        print_json(
            _told(manifest)
            | {"copied_bytes": taken.copied_bytes, "elapsed_s": round(taken.elapsed_s, 3), "removed": removed}
        )
        return 0
    click.echo(
        f"backup {manifest.id}: {len(manifest.partitions)} partitions, {shown_bytes(manifest.length_bytes)},"
        f" of it {shown_bytes(taken.copied_bytes)} new, in {taken.elapsed_s:.1f} s"
    )
    for id in removed:
        click.echo(f"removed backup {id}")
    return 0


def _say(text: str) -> None:
    click.echo(text, err=True)


@contextmanager
def _measured(file: Path | None, place: str) -> Iterator[list[Success]]:
    """Write metrics of what happens inside, also if it fails: what it appends to the list has succeeded.

    Raises:
        StorageFault: the backup was stored, and the file cannot be written.
    """
    successes: list[Success] = []
    failed = True
    try:
        yield successes
        failed = False
    finally:
        if file is not None:
            fault = _write_metrics(file, place, successes[-1] if successes else None)
            if fault is not None:
                click.echo(f"{file}: metrics not written: {fault}", err=True)
                if not failed:
                    raise fault


def _write_metrics(file: Path, place: str, success: Success | None) -> StorageFault | None:
    from appliance.control.backup.target import shown_place
    from appliance.log.checkpoint import replace_file
    from appliance.metrics.backup_page import backup_page

    target = shown_place(place)
    try:
        before = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        before = ""
    try:
        replace_file(file, backup_page(target, success, now_s=time.time(), before=before))
    except StorageFault as fault:
        return fault
    return None


@backup.command(name="list")
@target_argument
@json_option
def list_backups(*, target: str, as_json: bool) -> int:
    """List the backups in TARGET, oldest first. The exit code is 1 if a manifest is damaged."""
    from appliance.control.backup.target import open_target
    from appliance.control.backup.upkeep import ids, read_manifest
    from appliance.errors import CorruptFile

    place = open_target(target, writes=False)
    rows: list[dict[str, Any]] = []
    for id in ids(place):
        try:
            rows.append(_told(read_manifest(place, id)) | {"error": None})
        except CorruptFile as fault:
            rows.append({"id": id, "error": str(fault)})
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("BACKUP", "TAKEN", "PARTITIONS", "SIZE", "ERROR"),
            [
                (
                    row["id"],
                    row.get("created"),
                    row.get("partitions"),
                    shown_bytes(row["bytes"]) if "bytes" in row else None,
                    row["error"],
                )
                for row in rows
            ],
            right=("PARTITIONS", "SIZE"),
        )
    return 1 if any(row["error"] for row in rows) else 0


@backup.command()
@target_argument
@click.option("--backup", "id", metavar="ID", help="Only this backup.  [default: all]")
@json_option
def verify(*, target: str, id: str | None, as_json: bool) -> int:
    """Read all files of the backups in TARGET and compare their SHA-256.

    Each damaged or missing file is named, with the backups that need it. The exit code is then 1.
    """
    from appliance.control.backup.target import open_target
    from appliance.control.backup.upkeep import ids, verify

    place = open_target(target, writes=False)
    wanted = [id] if id is not None else ids(place)
    if not wanted:
        raise OperatorFault(f"{place.shown} has no backup")
    total, damages = verify(place, wanted)
    if as_json:
        print_json(
            {
                "backups": wanted,
                "bytes": total,
                "damaged": [
                    {"file": each.path, "error": each.reason, "backups": list(each.backups)}
                    for each in damages
                ],
            }
        )
    else:
        for each in damages:
            users = ", ".join(each.backups)
            click.echo(f"appliance: {place.shown}/{each.path}: {each.reason} (backup {users})", err=True)
        state = f"{len(damages)} files are damaged" if damages else "no file is damaged"
        click.echo(f"{len(wanted)} backups, {shown_bytes(total)}: {state}")
    return 1 if damages else 0


@backup.command()
@target_argument
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="How many backups stay; the newest.",
)
@yes_option
@json_option
def prune(*, target: str, keep: int, yes: bool, as_json: bool) -> None:
    """Remove all but the newest backups, and files that no backup needs.

    The command asks for confirmation; without a terminal it requires --yes. It refuses while a backup into TARGET runs.
    """
    from appliance.control.backup.target import directory_of, open_target
    from appliance.control.backup.upkeep import ids, prune

    directory = directory_of(target)
    if directory is not None and not directory.is_dir():
        raise OperatorFault(f"{directory}: no such directory")
    with ends_by_signal(), closing(open_target(target, writes=True, say=_say)) as place:
        if not yes:
            going = ids(place)[:-keep]
            require_yes(
                "backup prune",
                f"Remove {len(going)} backups from {place.shown}, and the files that only they need?"
                if going
                else f"Remove the files in {place.shown} that no backup needs?",
                names=going,
            )
        removed, objects = prune(place, keep)
    if as_json:
        print_json({"removed": removed, "files": objects})
    else:
        click.echo(f"removed {len(removed)} backups and {objects} files")


@click.command(short_help="Write a backup into a new data directory.")
@target_argument
@click.argument("data_dir", metavar="DATA_DIR", type=click.Path(path_type=Path))
@click.option("--backup", "id", metavar="ID", help="Which backup.  [default: the newest]")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT/CHROOT",
    help="For metadata that were in ZooKeeper: an empty chroot, or one that does not exist.",
)
@json_option
def restore(*, target: str, data_dir: Path, id: str | None, zookeeper: str | None, as_json: bool) -> int:
    """Write a backup from TARGET into DATA_DIR, which must be missing or empty. Then start `appliance serve` on it.

    Every file is compared with its SHA-256. If one is damaged, the command names it, and the directory is not usable.
    """
    from appliance.control.backup.restore import restore as write
    from appliance.control.backup.target import open_target
    from appliance.control.backup.upkeep import ids, read_manifest

    place = open_target(target, writes=False)
    if id is None:
        every = ids(place)
        if not every:
            raise OperatorFault(f"{place.shown} has no backup")
        id = every[-1]
    manifest = read_manifest(place, id)
    written = write(
        manifest,
        place,
        data_dir,
        zookeeper=zookeeper,
        say=(lambda _: None) if as_json else click.echo,
    )
    if as_json:
        print_json(_told(manifest) | {"data_dir": str(data_dir), "written_bytes": written})
    else:
        slots = max(manifest.slots, default=0) + 1
        click.echo(f"restored backup {id}: {shown_bytes(written)}")
        store = (
            ""
            if zookeeper is None
            else f" --set metadata.store=zookeeper --set zookeeper.connect={zookeeper}"
        )
        click.echo(f"next: appliance serve --data-dir {data_dir} --slots {slots}{store}")
    return 0


def _told(manifest: Manifest) -> dict[str, Any]:
    """One object a backup; the keys are stable."""
    created = datetime.fromtimestamp(manifest.created_ms / 1000, UTC)
    return {
        "id": manifest.id,
        "created": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "cluster_id": manifest.cluster_id,
        "version": manifest.appliance,
        "slots": len(manifest.slots),
        "partitions": len(manifest.partitions),
        "bytes": manifest.length_bytes,
    }


def _refuse_inside(target: Path, data_dir: Path) -> None:
    """Before anything is made there. Log directories elsewhere are compared later."""
    from appliance.control.backup.target import is_within

    if is_within(target, data_dir):
        raise OperatorFault(f"{target} is inside {data_dir}, which it is to back up")


def _data_directory_at(bootstrap: str) -> Path:
    """The data directory of the appliance that answers at an address, which must run on this host."""
    from appliance.cli.cluster_view import first_that_answers
    from appliance.cli.request import request
    from appliance.protocol.api_versions import ApiKey
    from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsRequest

    address = first_that_answers(bootstrap)
    answer = request(address, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(None))
    found = [Path(result.log_dir) for result in answer.results]
    for directory in found:
        if (directory.parent / "run.json").exists():
            return directory.parent
    raise OperatorFault(
        f"the data directory of the appliance at {address} is not on this host, or not above its log directories"
        f" ({', '.join(map(str, found))}); give DATA_DIR"
    )
