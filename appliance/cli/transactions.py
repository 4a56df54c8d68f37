"""`appliance transactions`: list, describe, producers, find-hanging, abort, terminate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.cluster_view import (
    ClusterView,
    PartitionView,
    cluster_view,
    first_that_answers,
    named_partitions,
)
from appliance.cli.connecting import BrokerError
from appliance.cli.hanging_transactions import coordinated_as, hanging_transactions
from appliance.cli.options import client_options
from appliance.cli.outcomes import Outcomes
from appliance.cli.output import json_option, print_json, print_table, say
from appliance.cli.record_format import shown_time
from appliance.cli.transaction_view import (
    Described,
    Listed,
    PartitionProducer,
    abort_in_partition,
    describe_transactions,
    fence_producer,
    list_transactions,
    partition_producers,
)
from appliance.cli.watch import watch_option, watched
from appliance.config.declaration import amount_in_unit
from appliance.protocol.errors import ErrorCode

STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
ID_BYTES_MAX: Final = 2**15 - 1
"""What a string of the protocol holds."""
PRODUCER_ID_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**15 - 1
OFFSET_MAX: Final = 2**63 - 1
COORDINATOR_EPOCH_MAX: Final = 2**31 - 1
DURATION_MS_MAX: Final = 2**63 - 1
MS_PER_MINUTE: Final = 60_000
FENCE_TIMEOUT_MS: Final = 60_000
"""The transaction timeout that `terminate` gives to an id. The next producer of the id names its own."""


def _milliseconds(context: click.Context, parameter: click.Parameter, text: str | None) -> int:
    """`1500`, or a number with a unit: `10s`, `5 min`; -1 where nothing was given."""
    if text is None:
        return -1
    plain = text.isascii() and text.isdigit() and len(text) <= 19
    amount = int(text) if plain else amount_in_unit(text, "ms")
    if amount is None or amount > DURATION_MS_MAX:
        raise click.BadParameter(
            f"{text!r} is no duration; give milliseconds, or a unit: 10s, 5min", context, parameter
        )
    return amount


def _valid_ids(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not name:
            raise click.BadParameter("a transactional id must not be empty", context, parameter)
        if len(name.encode()) > ID_BYTES_MAX:
            raise click.BadParameter(
                f"a transactional id has at most {ID_BYTES_MAX} bytes", context, parameter
            )
    return tuple(dict.fromkeys(names))


ids_argument = click.argument(
    "names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True, callback=_valid_ids
)


@click.group(cls=AliasedGroup, short_help="Show transactions; find and abort hanging ones.")
def transactions() -> None:
    """Show transactional ids and their transactions; find transactions that hang, and abort them."""


@transactions.command(name="list")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    multiple=True,
    help=f"Only ids in this state, one of {', '.join(STATES)}; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    metavar="ID",
    type=click.IntRange(0, PRODUCER_ID_MAX),
    multiple=True,
    help="Only the transactional id with this producer id; repeatable.",
)
@click.option(
    "--duration-filter",
    "duration_ms",
    metavar="DURATION",
    callback=_milliseconds,
    help="Only transactions that are open for longer than this: milliseconds, or a unit such as 10s.",
)
@click.option(
    "--transactional-id-pattern",
    "pattern",
    metavar="PATTERN",
    help="Only ids that this regular expression matches as a whole.",
)
@json_option
@watch_option
@client_options
def list_ids(
    *,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_ms: int,
    pattern: str | None,
    as_json: bool,
    watch_s: float | None,
    bootstrap: str,
) -> None:
    """List transactional ids with coordinator, producer id and state."""
    address = first_that_answers(bootstrap)

    def show() -> None:
        found = list_transactions(
            cluster_view(address),
            states=states,
            producer_ids=producer_ids,
            duration_ms=duration_ms,
            pattern=pattern,
        )
        if as_json:
            print_json([_listed(each) for each in found])
        elif found:
            print_table(
                ("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"),
                [tuple(_listed(each).values()) for each in found],
                right=("COORDINATOR", "PRODUCER ID"),
            )
        else:
            click.echo("no transactional ids", err=True)

    watched(show, watch_s)


@transactions.command()
@ids_argument
@json_option
@watch_option
@client_options
def describe(*, names: tuple[str, ...], as_json: bool, watch_s: float | None, bootstrap: str) -> None:
    """Show state, producer, timeout, age and partitions of transactional ids."""
    address = first_that_answers(bootstrap)

    def show() -> None:
        found = describe_transactions(address, names)
        _require_all(names, found)
        now_ms = _now_ms()
        if as_json:
            print_json([_described(found[name], now_ms) for name in names])
        else:
            for number, name in enumerate(names):
                if number:
                    click.echo()
                _print_described(_described(found[name], now_ms))

    watched(show, watch_s)


@transactions.command()
@click.argument("wanted", metavar="TOPIC[:PARTITION,...]...", nargs=-1, required=True)
@click.option("--open", "only_open", is_flag=True, help="Only producers with an open transaction.")
@json_option
@watch_option
@client_options
def producers(
    *, wanted: tuple[str, ...], only_open: bool, as_json: bool, watch_s: float | None, bootstrap: str
) -> None:
    """Show the producers that partitions remember, and their open transactions."""
    address = first_that_answers(bootstrap)

    def show() -> None:
        view = cluster_view(address)
        found = [
            each
            for each in partition_producers(view, named_partitions(view, wanted))
            if each.is_open or not only_open
        ]
        _show_producers(found, as_json=as_json, nothing="no producers")

    watched(show, watch_s)


@transactions.command(name="find-hanging")
@click.argument("wanted", metavar="[TOPIC[:PARTITION,...]...]", nargs=-1)
@click.option("--broker-id", type=click.IntRange(min=0), help="Only partitions that this broker leads.")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    metavar="MINUTES",
    type=click.IntRange(0, 10**9),
    default=15,
    show_default=True,
    help="The largest transaction timeout that the brokers allow. A transaction that is open for longer "
    "counts as hanging.",
)
@json_option
@client_options
def find_hanging(
    *, wanted: tuple[str, ...], broker_id: int | None, minutes: int, as_json: bool, bootstrap: str
) -> None:
    """Find transactions that are open in a partition, and that no coordinator will end.

    To end such a transaction in its partition, use `appliance transactions abort`.
    """
    address = first_that_answers(bootstrap)
    view = cluster_view(address)
    found = hanging_transactions(
        view,
        address,
        _searched(view, wanted, broker_id),
        now_ms=_now_ms(),
        older_than_ms=minutes * MS_PER_MINUTE,
    )
    _show_producers(found, as_json=as_json, nothing="no hanging transactions")


@transactions.command()
@click.argument("place", metavar="TOPIC:PARTITION")
@click.option(
    "--start-offset",
    metavar="OFFSET",
    type=click.IntRange(0, OFFSET_MAX),
    help="Abort the transaction that begins at this offset.",
)
@click.option(
    "--producer-id",
    metavar="ID",
    type=click.IntRange(0, PRODUCER_ID_MAX),
    help="Abort the transaction of this producer. Needs --producer-epoch.",
)
@click.option(
    "--producer-epoch",
    metavar="EPOCH",
    type=click.IntRange(0, EPOCH_MAX),
    help="The producer's epoch in the partition.",
)
@click.option(
    "--coordinator-epoch",
    metavar="EPOCH",
    type=click.IntRange(0, COORDINATOR_EPOCH_MAX),
    help="The epoch of the transaction coordinator.  [default: the partition's latest]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Abort in this partition even if a coordinator may still commit the transaction.",
)
@json_option
@client_options
def abort(
    *,
    place: str,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    force: bool,
    as_json: bool,
    bootstrap: str,
) -> int:
    """Abort a hanging transaction in one partition, without its coordinator.

    Name the transaction by its first offset, or by producer id and epoch. To end a transaction that a coordinator
    knows, use `terminate`. This command
    refuses such a transaction, because its coordinator may commit it in other partitions.
    """
    if (start_offset is None) == (producer_id is None):
        raise click.UsageError("give either --start-offset, or --producer-id and --producer-epoch")
    if (producer_id is None) != (producer_epoch is None):
        raise click.UsageError("--producer-id and --producer-epoch belong together")
    address = first_that_answers(bootstrap)
    view = cluster_view(address)
    partition = _one_partition(view, place)
    known = partition_producers(view, [partition])
    if start_offset is not None:
        producer = _that_began_at(known, partition, start_offset)
        producer_epoch = producer.told.producer_epoch
    else:
        assert producer_id is not None
        producer = _open_one_of(known, partition, producer_id)
    assert producer_epoch is not None
    producer_id = producer.told.producer_id
    if not force:
        _require_hanging(view, address, producer)
    if coordinator_epoch is None:
        coordinator_epoch = max(0, producer.told.coordinator_epoch)
    identity = {
        "topic": partition.topic,
        "partition": partition.partition,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
    }
    what = f"the transaction of producer {producer_id}, epoch {producer_epoch}, in {partition}"
    return _outcome(
        identity,
        what,
        lambda: abort_in_partition(
            view,
            partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        ),
        "aborted",
        as_json=as_json,
    )


@transactions.command()
@ids_argument
@json_option
@client_options
def terminate(*, names: tuple[str, ...], as_json: bool, bootstrap: str) -> int:
    """Abort the open transactions of ids, and fence their producers.

    A fenced producer cannot write again until its application makes a new one. The command returns when the abort is
    complete.
    """
    address = first_that_answers(bootstrap)
    found = describe_transactions(address, names)
    outcomes = Outcomes(as_json=as_json)
    for name in names:
        identity = {"transactional_id": name}
        try:
            _require_all((name,), found)
            producer_id, epoch = fence_producer(address, name, FENCE_TIMEOUT_MS)
        except BrokerError as fault:
            outcomes.refused(identity, name, fault)
        else:
            outcomes.done(
                identity,
                "terminated",
                f"terminated {name}: its producers below epoch {epoch} of producer id {producer_id} are fenced",
                producer_id=producer_id,
                producer_epoch=epoch,
            )
    return outcomes.finish()


def _outcome(
    identity: dict[str, Any], what: str, act: Callable[[], object], result: str, *, as_json: bool
) -> int:
    outcomes = Outcomes(as_json=as_json)
    try:
        act()
    except BrokerError as fault:
        outcomes.refused(identity, what, fault)
    else:
        outcomes.done(identity, result, f"{result} {what}")
    return outcomes.finish()


def _require_all(names: tuple[str, ...], found: dict[str, Described]) -> None:
    for name in names:
        if name not in found:
            raise BrokerError(
                f"there is no transactional id {name} ({ErrorCode.TRANSACTIONAL_ID_NOT_FOUND.name})"
            )


def _one_partition(view: ClusterView, text: str) -> PartitionView:
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise click.UsageError(f"{text!r}: must be TOPIC:PARTITION, such as orders:0")
    (partition,) = named_partitions(view, [text])
    return partition


def _searched(view: ClusterView, wanted: tuple[str, ...], broker: int | None) -> list[PartitionView]:
    """The partitions that `find-hanging` looks at. One without a leader stays in a named search, which refuses it."""
    partitions = (
        named_partitions(view, wanted)
        if wanted
        else [each for each in view.partitions if each.leader is not None]
    )
    if broker is None:
        return partitions
    if broker not in {slot.slot for slot in view.slots}:
        raise BrokerError(f"there is no broker {broker}")
    return [each for each in partitions if each.leader == broker]


def _that_began_at(
    known: list[PartitionProducer], partition: PartitionView, offset: int
) -> PartitionProducer:
    for each in known:
        if each.is_open and each.told.current_txn_start_offset == offset:
            return each
    began = ", ".join(str(each.told.current_txn_start_offset) for each in known if each.is_open)
    raise BrokerError(
        f"no open transaction begins at offset {offset} of {partition};"
        + (f" open ones begin at {began}" if began else " none is open there")
    )


def _open_one_of(
    known: list[PartitionProducer], partition: PartitionView, producer_id: int
) -> PartitionProducer:
    for each in known:
        if each.is_open and each.told.producer_id == producer_id:
            return each
    raise BrokerError(f"producer {producer_id} has no open transaction in {partition}")


def _require_hanging(view: ClusterView, address: str, producer: PartitionProducer) -> None:
    """Refuse a transaction that its coordinator may still commit: an abort of one partition would tear it."""
    name = coordinated_as(view, address, producer)
    if name is not None:
        raise BrokerError(
            f"the transaction of producer {producer.told.producer_id} in {producer.place} belongs to the transactional"
            f" id {name}, whose coordinator may still commit it. Use `appliance transactions terminate`, or --force"
        )


def _listed(each: Listed) -> dict[str, Any]:
    """The keys are stable."""
    return {
        "transactional_id": each.told.transactional_id,
        "coordinator": each.coordinator,
        "producer_id": each.told.producer_id,
        "state": each.told.transaction_state,
    }


def _described(each: Described, now_ms: int) -> dict[str, Any]:
    """The keys are stable. `started_ms` and `age_ms` are null while no transaction is open.

    A coordinator also tells when a transaction began that is complete.
    """
    told = each.told
    started_ms = _or_none(told.transaction_start_time_ms) if told.transaction_state in OPEN_STATES else None
    return {
        "transactional_id": told.transactional_id,
        "coordinator": each.coordinator,
        "producer_id": told.producer_id,
        "producer_epoch": told.producer_epoch,
        "state": told.transaction_state,
        "timeout_ms": told.transaction_timeout_ms,
        "started_ms": started_ms,
        "age_ms": None if started_ms is None else max(0, now_ms - started_ms),
        "partitions": [{"topic": place.topic, "partition": place.partition} for place in each.partitions()],
    }


def _print_described(told: dict[str, Any]) -> None:
    say(
        f"{told['transactional_id']}  {told['state']}, producer id {told['producer_id']}, "
        f"epoch {told['producer_epoch']}, coordinator {told['coordinator']}, timeout {told['timeout_ms']} ms"
    )
    if told["started_ms"] is not None:
        click.echo(f"open since {shown_time(told['started_ms'])}, {_seconds(told['age_ms'])}")
    if told["partitions"]:
        print_table(
            ("TOPIC", "PARTITION"),
            [(place["topic"], place["partition"]) for place in told["partitions"]],
            right=("PARTITION",),
        )


def _show_producers(found: list[PartitionProducer], *, as_json: bool, nothing: str) -> None:
    now_ms = _now_ms()
    rows = [_producer(each, now_ms) for each in found]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            (
                "TOPIC",
                "PARTITION",
                "PRODUCER ID",
                "EPOCH",
                "COORDINATOR EPOCH",
                "LAST SEQUENCE",
                "START OFFSET",
                "LAST RECORD",
                "AGE",
            ),
            [
                (
                    *(row[key] for key in ("topic", "partition", "producer_id", "producer_epoch")),
                    row["coordinator_epoch"],
                    row["last_sequence"],
                    row["start_offset"],
                    None if row["last_timestamp_ms"] is None else shown_time(row["last_timestamp_ms"]),
                    None if row["age_ms"] is None else _seconds(row["age_ms"]),
                )
                for row in rows
            ],
            right=("PARTITION", "PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "LAST SEQUENCE", "START OFFSET"),
        )
    else:
        click.echo(nothing, err=True)


def _producer(each: PartitionProducer, now_ms: int) -> dict[str, Any]:
    """The keys are stable; what the partition does not know is null. `age_ms` is that of the last record."""
    told = each.told
    last_ms = _or_none(told.last_timestamp)
    return {
        "topic": each.place.topic,
        "partition": each.place.partition,
        "producer_id": told.producer_id,
        "producer_epoch": told.producer_epoch,
        "coordinator_epoch": _or_none(told.coordinator_epoch),
        "last_sequence": _or_none(told.last_sequence),
        "start_offset": _or_none(told.current_txn_start_offset),
        "last_timestamp_ms": last_ms,
        "age_ms": None if last_ms is None else max(0, now_ms - last_ms),
    }


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.1f} s"
