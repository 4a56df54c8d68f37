"""Parquet and Arrow files in and out, for `appliance produce` and `appliance consume`; by the native client's columns.

An output file appears under its name when it is whole (`output_file.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.client import bootstrap_of, native_client_options
from appliance.cli.connecting import BrokerError
from appliance.cli.output import say
from appliance.cli.output_file import OutputFile, UnfitFile, opened
from appliance.cli.positions import Anchor, Place
from appliance.errors import ApplianceError, OperatorFault
from appliance.extras import is_installed, need

if TYPE_CHECKING:
    import pyarrow as pa

TO: Final = ("parquet", "arrow", "json")
ROWS_AT_ONCE: Final = 1 << 16
BYTES_AT_ONCE: Final = 32 << 20
"""So many rows, or bytes, are handed to the client together."""
ROWS_DECODED: Final = 1 << 11
"""So many are decoded together: in a dictionary of some kilobytes each of them may be a hundred kilobytes."""
BUFFER_BYTES: Final = 1 << 20
GROUP_ROWS: Final = 1 << 20
GROUP_BYTES: Final = 64 << 20
"""So many rows, or bytes, of Parquet become a row group: small ones are slow to read and compress badly."""
TIMEOUT_MS: Final = 30_000
TOPIC_MS: Final = 3_000
RECORD_BYTES_MAX: Final = 100_000_000
COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
TEXT_COLUMNS: Final = ("key", "value")
BROKEN_STREAM: Final = b"\xff\xff\xff\xff\x01\x00\x00\x00"
"""The begin of a message that does not follow: an Arrow stream without its end is complete for most readers."""
PRODUCER_OPTIONS: Final = ("transactional.id", "transaction.timeout.ms")
CONSUMER_OPTIONS: Final = ("isolation.level", "client.rack")


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
    from appliance_client.errors import ClientError, OptionError, SerializationError

    try:
        yield
    except SerializationError as fault:
        raise UnfitFile(str(fault)) from None
    except OptionError as fault:
        raise click.UsageError(str(fault)) from None
    except ClientError as fault:
        raise BrokerError(str(fault)) from None


@dataclass(slots=True)
class Sent:
    """What became of the rows of files. `fault` says why not all were sent; None: all were acknowledged."""

    futures: list[Any] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    """Of batches that were handed over, and not acknowledged."""
    fault: ApplianceError | None = None

    @property
    def rows(self) -> int:
        """How many rows were handed to the client."""
        return sum(each.rows for each in self.futures)

    @property
    def delivered(self) -> int:
        """How many rows were acknowledged."""
        return sum(each.count for future in self.futures for each in future.delivered.values())

    def add(self, future: Any) -> None:
        """A table was handed over."""
        future.add_callback(lambda _found, error: None if error is None else self.errors.append(error))
        self.futures.append(future)


def send_parquet(
    bootstrap: str,
    topic: str,
    files: Sequence[Path],
    *,
    mapping: dict[str, str | None],
    partition: int | None,
    compression: str,
    acks: str,
) -> Sent:
    """Send the rows of Parquet files. The columns of all files are checked before the first row is sent.

    What was handed over when a fault shows, or at Ctrl-C, is still sent. With `-X transactional.id=…` all rows are one
    transaction, which is aborted then.

    Args:
        mapping: column names for key, value, timestamp and headers; None is the column of that name, if there is one.

    Raises:
        UnfitFile: a file is no Parquet, or its columns cannot be sent. Nothing was sent.
        BrokerError: the broker refuses, or is silent, before anything was sent.
    """
    need_columns("produce --parquet")
    from appliance_client import Producer

    options = {
        "bootstrap_servers": bootstrap_of(bootstrap),
        "compression_type": compression,
        "acks": acks,
        "enable_idempotence": acks == "all",
        "batch_size": 1 << 20,
        "max_request_size": RECORD_BYTES_MAX,
        "buffer_memory": RECORD_BYTES_MAX + (28 << 20),
        "max_block_ms": TIMEOUT_MS,
        "delivery_timeout_ms": 2 * TIMEOUT_MS,
        "request_timeout_ms": TIMEOUT_MS,
        **native_client_options(*PRODUCER_OPTIONS),
    }
    given: dict[str, Any] = {role: name for role, name in mapping.items() if name is not None}
    given["partition"] = partition
    sent = Sent()
    with _told(), Producer(**options) as producer:
        is_transactional = "transactional_id" in options
        if is_transactional:
            producer.init_transactions()
            producer.begin_transaction()
        try:
            for path in files:
                with _parquet(path) as file, _about(path, 0):
                    producer.send_arrow(topic, file.schema_arrow.empty_table(), **given)
            for path in files:
                _send_file(producer, topic, path, given, sent)
            producer.flush()
            sent.fault = _refusal(topic, sent)
        except (ApplianceError, KeyboardInterrupt) as fault:
            producer.flush()
            if isinstance(fault, KeyboardInterrupt):
                _end(producer, sent, is_transactional=is_transactional, is_whole=False)
                raise
            sent.fault = _refusal(topic, sent) or fault
        _end(producer, sent, is_transactional=is_transactional, is_whole=sent.fault is None)
    if sent.fault is not None and not sent.futures:
        raise sent.fault
    return sent


def _end(producer: Any, sent: Sent, *, is_transactional: bool, is_whole: bool) -> None:
    """Commit or abort the transaction, and say what was sent of an input that was not sent to its end."""
    if is_transactional and is_whole:
        producer.commit_transaction()
    elif is_transactional:
        producer.abort_transaction()
        text = "the transaction was aborted: consumers with read_committed see none of these records"
        say(f"appliance: {text}", err=True)
    elif not is_whole and sent.futures:
        say(f"appliance: {sent.delivered} rows were sent", err=True)


def _refusal(topic: str, sent: Sent) -> BrokerError | None:
    """Why rows that were handed over were not acknowledged; None where all were."""
    lost = sent.rows - sent.delivered
    if not lost:
        return None
    reason = str(sent.errors[0]) if sent.errors else "no answer"
    return BrokerError(f"{topic}: {lost} of {sent.rows} records were not acknowledged: {reason}")


def _send_file(producer: Any, topic: str, path: Path, given: dict[str, Any], sent: Sent) -> None:
    """Hand over the rows of a file; stop where the broker has refused some.

    Raises:
        UnfitFile: the file is broken, or has a row that cannot be sent.
        BrokerError: the client takes no more.
    """
    row = 0
    with _parquet(path) as file:
        columns = [given.get(role, role) for role in ("key", "value", "timestamp", "headers")]
        columns = [name for name in dict.fromkeys(columns) if name in file.schema_arrow.names]
        batches = file.iter_batches(_rows_at_once(file.metadata, columns), columns=columns)
        for table in _gathered(batches):
            if sent.errors:
                return
            with _about(path, row):
                sent.add(producer.send_arrow(topic, table, **given))
            row += table.num_rows


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches together, as many as make `ROWS_AT_ONCE` or `BYTES_AT_ONCE`."""
    import pyarrow as pa

    found: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        found.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= ROWS_AT_ONCE or size_bytes >= BYTES_AT_ONCE:
            yield pa.Table.from_batches(found)
            found, rows, size_bytes = [], 0, 0
    if found:
        yield pa.Table.from_batches(found)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The file, read in pieces: a row group may be larger than the memory.

    Raises:
        UnfitFile: it is no Parquet, or is broken.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as fault:  # the last, for names of columns
        raise UnfitFile(f"{path}: {fault}") from None


@contextmanager
def _about(path: Path, first_row: int) -> Iterator[None]:
    """The client's errors about a table whose first row is `first_row` of the file."""
    from appliance_client.errors import ClientError, RecordTooLargeError, SerializationError

    try:
        yield
    except ClientError as fault:
        text = str(fault)
        if fault.row is not None:
            text = f"row {first_row + fault.row}" + text.removeprefix(f"row {fault.row}")
        is_of_file = isinstance(fault, SerializationError | RecordTooLargeError)
        raise (UnfitFile if is_of_file else BrokerError)(f"{path}: {text}") from None


def _rows_at_once(metadata: Any, columns: Sequence[str]) -> int:
    """How many rows are about `BYTES_AT_ONCE`, in the row group whose rows are the largest."""
    largest = 1.0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size_bytes = sum(
            column.total_uncompressed_size
            for column in map(group.column, range(group.num_columns))
            if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in columns)
        )
        largest = max(largest, size_bytes / max(1, group.num_rows))
    return max(1, min(ROWS_DECODED, math.floor(BYTES_AT_ONCE / largest)))


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

    Args:
        text: those of `columns` that become text.

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
            schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
        # A value that is no text is named by these two.
        read = list(dict.fromkeys((*columns, "partition", "offset"))) if text else columns
        batches = read_arrow_batches(
            topic,
            start=_place(bootstrap, topic, place, partitions, is_start=True),
            end="latest" if until is None else _place(bootstrap, topic, until, partitions, is_start=False),
            partitions=partitions or None,
            columns=read,
            max_records=count,
            **_consumer_options(bootstrap),
        )
        rows = 0
        with opened(output) as sink, _written(sink, to, schema) as write:
            for batch in batches:
                write(_with_text(topic, batch, schema, text) if text else batch)
                rows += batch.num_rows
    return rows


def _with_text(topic: str, batch: pa.RecordBatch, schema: pa.Schema, text: Sequence[str]) -> pa.RecordBatch:
    """The columns of `schema`, those in `text` as text.

    Raises:
        UnfitFile: a key or a value is no text; the message names the record.
    """
    import pyarrow as pa

    try:
        return batch.select(schema.names).cast(schema)
    except pa.ArrowInvalid:
        places = list(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))
        for name in text:
            for (partition, offset), value in zip(places, batch[name], strict=True):
                try:
                    bytes(value.as_py() or b"").decode()
                except UnicodeDecodeError:
                    raise UnfitFile(
                        f"--text: the {name} of {topic}-{partition}@{offset} is no text in UTF-8"
                    ) from None
        raise


def _consumer_options(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap_of(bootstrap),
        "isolation_level": "read_committed",
        "default_api_timeout_ms": TIMEOUT_MS,
        "allow_auto_create_topics": False,
        **native_client_options(*CONSUMER_OPTIONS),
    }


def _place(bootstrap: str, topic: str, place: Place, partitions: Sequence[int], *, is_start: bool) -> Any:
    """Return a place as the native client takes it.

    Raises:
        BrokerError: it is an offset to start at, and lies past the end of a partition.
    """
    from datetime import UTC, datetime, timedelta

    if place.anchor is Anchor.TIMESTAMP:
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=place.distance)
        except OverflowError:
            return "latest"  # no record is from after the year 9999
    if place.anchor is Anchor.OFFSET and not is_start:
        return place.distance
    begins = place.anchor is Anchor.BEGINNING
    if place.anchor is not Anchor.OFFSET and not place.distance:
        return "earliest" if begins else "latest"
    from appliance_client import Consumer, TopicPartition

    with Consumer(**_consumer_options(bootstrap)) as consumer:
        known = consumer.partitions_for_topic(topic, TOPIC_MS)
        places = [
            TopicPartition(topic, each) for each in sorted(known) if not partitions or each in partitions
        ]
        starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    if place.anchor is Anchor.OFFSET:
        for each in places:
            if place.distance > ends[each]:
                name = f"{each.topic}-{each.partition}"
                raise BrokerError(f"{name}: offset {place.distance} is past its end, {ends[each]}")
            if place.distance < starts[each]:
                name = f"{each.topic}-{each.partition}"
                text = f"{name}: offset {place.distance} was deleted; starting at {starts[each]}"
                say(f"appliance: {text}", err=True)
        return place.distance
    if begins:
        return {each.partition: min(starts[each] + place.distance, end) for each, end in ends.items()}
    return {each.partition: max(starts[each], end - place.distance) for each, end in ends.items()}


@contextmanager
def _written(sink: OutputFile, to: str, schema: pa.Schema) -> Iterator[Any]:
    """What writes record batches to `sink`. After an error what was written does not look complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if to == "arrow":
        writer: Any = pa.ipc.new_stream(
            sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        )
        write, end = writer.write_batch, writer.close
    else:
        writer = pq.ParquetWriter(sink, schema, compression="zstd")
        group = _RowGroup(writer, schema)
        write, end = group.add, group.end
    try:
        yield write
        end()
    except BaseException:
        if to == "arrow":
            with suppress(OperatorFault, OSError):
                sink.write(BROKEN_STREAM)
        sink.abandon()
        with suppress(pa.ArrowException, OSError):
            writer.close()
        raise


class _RowGroup:
    """Gathers record batches until they are a row group."""

    __slots__ = ("_batches", "_bytes", "_rows", "_schema", "_writer")

    def __init__(self, writer: Any, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Another record batch; it is written when there are enough."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write()

    def end(self) -> None:
        """Write what is left, and the end of the file."""
        if self._batches:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches = []
        self._rows = self._bytes = 0
        self._writer.write_table(table, max(1, table.num_rows))


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
