"""Parquet and Arrow files in and out, for `appliance produce` and `appliance consume`; by the native client's columns.

An output file appears under its name when it is whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from appliance.cli.client import bootstrap_of, native_client_options
from appliance.cli.connecting import BrokerError
from appliance.cli.positions import Anchor, Place
from appliance.errors import OperatorFault
from appliance.extras import is_installed, need

if TYPE_CHECKING:
    import pyarrow as pa

TO: Final = ("parquet", "arrow", "json")
STANDARD_OUTPUT: Final = "-"
ROWS_AT_ONCE: Final = 1 << 16
TIMEOUT_MS: Final = 30_000
COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
TEXT_COLUMNS: Final = ("key", "value")


class UnfitFile(OperatorFault):
    """A file that cannot be read, written, or become records."""


def need_columns(option: str) -> None:
    """Raises:
    OperatorFault: what this needs is not installed; the text says how to install it.
    """
    need("pyarrow", needed_by=option)
    if not is_installed("appliance_client"):
        raise OperatorFault(
            f"{option} needs the native client, which is not installed; "
            "in a clone of the appliance run: pip install './appliance_client[arrow]'"
        )


@contextmanager
def _told() -> Iterator[None]:
    """The client's errors as those of a command."""
    from appliance_client.errors import ClientError, SerializationError

    try:
        yield
    except SerializationError as fault:
        raise UnfitFile(str(fault)) from None
    except ClientError as fault:
        raise BrokerError(str(fault)) from None


def send_parquet(
    bootstrap: str,
    topic: str,
    files: Sequence[Path],
    *,
    mapping: dict[str, str | None],
    partition: int | None,
    compression: str,
    acks: str,
) -> int:
    """Send the rows of Parquet files. Returns how many were acknowledged.

    Args:
        mapping: column names for key, value, timestamp and headers; None is the column of that name, if there is one.

    Raises:
        UnfitFile: a file is no Parquet, or its columns cannot be sent. The text says how many rows were.
        BrokerError: the broker refuses, or is silent.
    """
    need_columns("produce --parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    from appliance_client import Producer

    given = {role: name for role, name in mapping.items() if name is not None}
    options = {
        **native_client_options(),
        "bootstrap_servers": bootstrap_of(bootstrap),
        "compression_type": compression,
        "acks": acks,
        "enable_idempotence": acks == "all",
        "batch_size": 1 << 20,
        "max_request_size": 100_000_000,
        "max_block_ms": TIMEOUT_MS,
        "delivery_timeout_ms": 2 * TIMEOUT_MS,
        "request_timeout_ms": TIMEOUT_MS,
    }
    sent: list[Any] = []
    with _told(), Producer(**options) as producer:
        for path in files:
            try:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(ROWS_AT_ONCE):
                        sent.append(producer.send_arrow(topic, batch, partition=partition, **given))
                        if sent[-1].exception() is not None:
                            break
            except (pa.ArrowException, OSError) as fault:
                producer.flush()
                raise UnfitFile(f"{path}: {fault}; {_acknowledged(sent)} rows before it were sent") from None
        producer.flush()
        for future in sent:
            future.get(0)
    return _acknowledged(sent)


def _acknowledged(sent: Sequence[Any]) -> int:
    return sum(each.count for future in sent for each in future.delivered.values())


def write_columns(
    bootstrap: str,
    topic: str,
    *,
    to: str,
    output: str,
    place: Place,
    until: Place | None,
    partitions: Sequence[int],
    count: int | None,
    columns: Sequence[str],
    text: Sequence[str],
) -> int:
    """Write the records of a topic as Parquet, or as a stream of Arrow: up to `until`, or to its present end.

    Returns how many.

    Raises:
        UnfitFile: the file cannot be written, or a key or value that is to be text is none.
        BrokerError: the broker refuses, or is silent.
    """
    need_columns(f"consume --to {to}")
    import pyarrow as pa

    from appliance_client.arrow import read_arrow_batches
    from appliance_client.arrow_reading import schema_of

    with _told():
        schema = schema_of(columns)
        for name in text:
            index = schema.get_field_index(name)
            schema = schema.set(index, pa.field(name, pa.string()))
        batches = read_arrow_batches(
            topic,
            start=_place(bootstrap, topic, place),
            end="latest" if until is None else _place(bootstrap, topic, until),
            partitions=partitions or None,
            columns=columns,
            max_records=count,
            bootstrap_servers=bootstrap_of(bootstrap),
            **native_client_options(),
            isolation_level="read_committed",
            default_api_timeout_ms=TIMEOUT_MS,
        )
        rows = 0
        try:
            with opened(output) as sink, _writer(sink, to, schema) as writer:
                for batch in batches:
                    table = pa.Table.from_batches([batch])
                    try:
                        writer.write_table(table.cast(schema) if text else table)
                    except pa.ArrowInvalid as fault:
                        raise UnfitFile(f"--text: a {' or '.join(text)} is no text: {fault}") from None
                    rows += batch.num_rows
        except OSError as fault:
            raise UnfitFile(f"{output}: {fault.strerror or fault}") from None
    return rows


def _place(bootstrap: str, topic: str, place: Place) -> Any:
    """Return a place as the native client takes it."""
    from datetime import UTC, datetime

    if place.anchor is Anchor.TIMESTAMP:
        return datetime.fromtimestamp(place.distance / 1000, UTC)
    if place.anchor is Anchor.OFFSET:
        return place.distance
    begins = place.anchor is Anchor.BEGINNING
    if not place.distance:
        return "earliest" if begins else "latest"
    from appliance_client import Consumer, TopicPartition

    with Consumer(
        bootstrap_servers=bootstrap_of(bootstrap),
        default_api_timeout_ms=TIMEOUT_MS,
        **native_client_options(),
    ) as consumer:
        places = [TopicPartition(topic, each) for each in consumer.partitions_for_topic(topic)]
        starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    if begins:
        return {each.partition: min(starts[each] + place.distance, end) for each, end in ends.items()}
    return {each.partition: max(starts[each], end - place.distance) for each, end in ends.items()}


def _writer(sink: BinaryIO, to: str, schema: pa.Schema) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if to == "parquet":
        return pq.ParquetWriter(sink, schema, compression="zstd")
    return pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True))


@contextmanager
def opened(output: str, *, may_be_terminal: bool = False) -> Iterator[BinaryIO]:
    """The file to write to; it gets its name when it is complete."""
    if output == STANDARD_OUTPUT:
        if sys.stdout.isatty() and not may_be_terminal:
            raise click.UsageError("--output: name a file; standard output is a terminal")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    unfinished = Path(f"{output}.part")
    try:
        with unfinished.open("wb") as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)


def chosen(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """The columns of a list with commas.

    Raises:
        click.UsageError: one is not known.
    """
    if text is None:
        return []
    names = [each.strip() for each in text.split(",")]
    for name in names:
        if name not in known:
            raise click.UsageError(f"{option}: unknown column {name!r}; the columns are {', '.join(known)}")
    return names
