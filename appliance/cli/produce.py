"""`appliance produce`: lines or whole files become records."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import click

from appliance.cli.client import asked, producer, refusal
from appliance.cli.connecting import BrokerError, said_options
from appliance.cli.options import client_options, name_and_value, unescaped
from appliance.cli.output import json_option, print_json, say
from appliance.cli.retry_watch import RetryWatch
from appliance.errors import OperatorFault
from appliance.extras import is_installed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

ANY_PARTITION: Final = -1
PARTITION_MAX: Final = (1 << 31) - 1
"""On the wire a partition is an INT32; beyond it librdkafka raises what is meant for programmers."""
MESSAGE_TIMEOUT_S: Final = 60.0
FLUSH_TIMEOUT_S: Final = MESSAGE_TIMEOUT_S + 5
LINE_FEED: Final = b"\n"
BLOCK_BYTES: Final = 1 << 16
PROGRESS_STEP_BYTES: Final = 64 * 1024
STANDARD_INPUT: Final = Path("-")
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

PRODUCER_OPTIONS: Final[dict[str, object]] = {
    # Keys land on the partition where the Java client would put them.
    "partitioner": "murmur2_random",
    # The broker says how large a record may be; beyond this it would hang up and we would try again.
    "message.max.bytes": 100_000_000,
    "message.timeout.ms": int(MESSAGE_TIMEOUT_S * 1000),
    "allow.auto.create.topics": True,
}

RAW: Final = "raw"
ENCODINGS: Final = (RAW, "base64", "hex")

Record = tuple[bytes | None, bytes | None]


class Progress(Protocol):
    """Told how many bytes of the input were read."""

    def __call__(self, length_bytes: int) -> None: ...


class NoKey(OperatorFault):
    """A line, or a file, without the key separator that was asked for."""


class BadEncoding(NoKey):
    """A key or a value that is not written as `--encoding` says."""


class Deliveries:
    """What the broker said to each record. librdkafka calls it once a record."""

    __slots__ = ("_watch", "delivered", "failed", "first_error")

    def __init__(self, watch: RetryWatch) -> None:
        self._watch = watch
        self.delivered = 0
        self.failed = 0
        self.first_error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
            self._watch.delivered()
            return
        self.failed += 1
        self.first_error = self.first_error or error


class RecordReader:
    """Turns input into (key, value) pairs as the flags say."""

    __slots__ = ("_delimiter", "_encoding", "_key", "_null_marker", "_separator")

    def __init__(
        self,
        *,
        key: str | None,
        key_separator: bytes | None,
        null_marker: str | None,
        encoding: str = RAW,
        delimiter: bytes = LINE_FEED,
    ) -> None:
        self._delimiter = delimiter
        self._encoding = encoding
        self._key = None if key is None else key.encode()
        self._separator = key_separator
        self._null_marker = None if null_marker is None else null_marker.encode()

    def record(self, data: bytes) -> Record:
        """The record that one line, or one whole file, stands for.

        Raises:
            NoKey: a key is wanted and the separator is not there; or it, or the value, is not written as the encoding
                says (BadEncoding).
        """
        key, value = self._key, data
        if self._separator is not None:
            key, found, value = data.partition(self._separator)
            if not found:
                shown = data[:60].decode(errors="replace")
                raise NoKey(f"no key separator {self._separator.decode(errors='replace')!r} in {shown!r}")
        return self._or_null(key), self._or_null(value)

    def _or_null(self, part: bytes | None) -> bytes | None:
        if part is None or part == self._null_marker:
            return None
        return part if self._encoding == RAW else self._decoded(part)

    def _decoded(self, part: bytes) -> bytes:
        """Return the bytes that a text stands for; spaces around it do not count."""
        try:
            if self._encoding == "hex":
                return bytes.fromhex(part.decode("ascii").strip())
            return base64.b64decode(part.strip(), validate=True)
        except (ValueError, UnicodeDecodeError):
            shown = part[:60].decode(errors="replace")
            raise BadEncoding(f"not {self._encoding}: {shown!r}") from None

    def lines(self, source: BinaryIO, progress: Progress) -> Iterator[Record]:
        """One record a line, without the delimiter at its end; a last line without one counts too."""
        for number, line in enumerate(_split(source, self._delimiter), 1):
            progress(len(line))
            try:
                record = self.record(line.removesuffix(self._delimiter))
            except NoKey as fault:
                raise NoKey(f"line {number}: {fault}") from None
            yield record

    def whole(self, source: BinaryIO, progress: Progress) -> Iterator[Record]:
        """One record with everything in it."""
        data = source.read()
        progress(len(data))
        yield self.record(data)


def _split(source: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """Yield the lines of `source` with the delimiter at the end of each; the last one may lack it."""
    if delimiter == LINE_FEED:
        yield from source
        return
    left = bytearray()
    # A pipe gives what is there: a line is sent when it is whole, not when a block is full.
    while block := source.read1(BLOCK_BYTES):  # type: ignore[attr-defined]
        unseen = max(0, len(left) - len(delimiter) + 1)
        left += block
        if left.find(delimiter, unseen) >= 0:
            *lines, left = left.split(delimiter)
            for line in lines:
                yield bytes(line + delimiter)
    if left:
        yield bytes(left)


@click.command(short_help="Send lines or files to a topic.")
@click.argument("topic")
@click.argument(
    "files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--parquet", "is_parquet", is_flag=True, help="FILES are Parquet: send each row as a record, fast."
)
@click.option("--key-column", metavar="NAME", help="With --parquet: column of keys.  [default: key, if any]")
@click.option("--value-column", metavar="NAME", help="With --parquet: column of values.  [default: value]")
@click.option(
    "--timestamp-column",
    metavar="NAME",
    help="With --parquet: column of times.  [default: timestamp, if any]",
)
@click.option(
    "--headers-column", metavar="NAME", help="With --parquet: column of headers.  [default: headers, if any]"
)
@click.option("--whole", is_flag=True, help="Send each file as one record, instead of each line.")
@click.option("--key", "-k", help="Key of every record.")
@click.option(
    "--key-separator",
    "-K",
    metavar="TEXT",
    help="Text that separates key and value in the input, with escapes such as \\t or \\x1f.",
)
@click.option(
    "--delimiter",
    "-D",
    metavar="TEXT",
    help="Text that separates records in the input, with escapes.  [default: \\n]",
)
@click.option(
    "--encoding",
    type=click.Choice(ENCODINGS),
    default=RAW,
    show_default=True,
    help="How keys and values are written in the input; --key, too.",
)
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Header of every record; repeatable."
)
@click.option(
    "--null-marker", metavar="TEXT", help="Send null (a tombstone) for a key or value that equals TEXT."
)
@click.option("--compression", "-z", type=click.Choice(CODECS), default="none", show_default=True)
@click.option(
    "--partition",
    "-p",
    type=click.IntRange(min=0, max=PARTITION_MAX),
    help="Partition of every record.  [default: by key, or any]",
)
@click.option("--acks", type=click.Choice(("all", "1", "0")), default="all", show_default=True)
@json_option
@client_options
def produce(
    *,
    topic: str,
    files: tuple[Path, ...],
    is_parquet: bool,
    key_column: str | None,
    value_column: str | None,
    timestamp_column: str | None,
    headers_column: str | None,
    whole: bool,
    key: str | None,
    key_separator: str | None,
    delimiter: str | None,
    encoding: str,
    headers: tuple[str, ...],
    null_marker: str | None,
    compression: str,
    partition: int | None,
    acks: str,
    as_json: bool,
    bootstrap: str,
) -> int:
    """Send lines of FILES, or of standard input, to TOPIC.

    With acks=all (the default) each record is written exactly once, even if it is sent several times. With
    -X transactional.id=NAME, all records are one transaction, which is committed at the end of the input.
    """
    mapping = {
        "key": key_column,
        "value": value_column,
        "timestamp": timestamp_column,
        "headers": headers_column,
    }
    if is_parquet:
        texts = (key, key_separator, null_marker, delimiter)
        if whole or headers or encoding != RAW or any(each is not None for each in texts):
            raise click.UsageError(
                "--parquet cannot be used with --whole, --key, --key-separator, --delimiter, --encoding,"
                " --header or --null-marker"
            )
        if not files or STANDARD_INPUT in files:
            raise click.UsageError("--parquet: name files; standard input cannot be read as Parquet")
        return _parquet(
            topic,
            files,
            bootstrap=bootstrap,
            mapping=mapping,
            partition=partition,
            compression=compression,
            acks=acks,
            as_json=as_json,
        )
    if any(name is not None for name in mapping.values()):
        raise click.UsageError("columns are named only with --parquet")
    reader = _reader(
        key=key,
        key_separator=key_separator,
        delimiter=delimiter,
        null_marker=null_marker,
        encoding=encoding,
        whole=whole,
    )
    parsed_headers: list[tuple[str, str | bytes | None]] = [
        (name, value.encode()) for name, value in (name_and_value("--header", h) for h in headers)
    ]
    watch = RetryWatch(_warn, give_up_s=MESSAGE_TIMEOUT_S)
    client = producer(
        bootstrap,
        {
            **PRODUCER_OPTIONS,
            **watch.options(),
            "compression.type": compression,
            "acks": acks,
            "enable.idempotence": acks == "all",
        },
    )
    deliveries = Deliveries(watch)
    started_s = time.monotonic()
    bad_input: NoKey | None = None
    with progress_of(files) as progress, transaction_of(client) as commit:
        records = _records(reader, files, whole=whole, progress=progress)
        try:
            asked(
                lambda: send(client, topic, records, partition, headers=parsed_headers, deliveries=deliveries)
            )
        except NoKey as refused:
            bad_input = refused
        finally:
            # Also after Ctrl-C: what was read is sent, so that a person at a keyboard loses nothing.
            client.flush(FLUSH_TIMEOUT_S)
        fault = _fault(topic, deliveries, unsettled=len(client), watch=watch, bad_input=bad_input)
        if fault is None:
            commit()
    took_s = time.monotonic() - started_s
    if as_json:
        print_json(
            {
                "topic": topic,
                "delivered": deliveries.delivered,
                "failed": deliveries.failed + len(client),
                "seconds": round(took_s, 3),
                "error": None if fault is None else str(fault),
            }
        )
    if fault is not None:
        raise fault
    if sys.stderr.isatty():
        click.echo(f"{_records_text(deliveries.delivered)} to {topic} in {took_s:.2f} s", err=True)
    return 0


def _reader(
    *,
    key: str | None,
    key_separator: str | None,
    delimiter: str | None,
    null_marker: str | None,
    encoding: str,
    whole: bool,
) -> RecordReader:
    """Raises click.UsageError where flags exclude each other, or separate nothing."""
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator cannot be used together")
    if key_separator == "":
        raise click.UsageError("--key-separator: must not be empty")
    if delimiter == "" or (whole and delimiter is not None):
        raise click.UsageError("--delimiter: must not be empty, and cannot be used with --whole")
    return RecordReader(
        key=key,
        key_separator=None if key_separator is None else unescaped("--key-separator", key_separator),
        null_marker=null_marker,
        encoding=encoding,
        delimiter=LINE_FEED if delimiter is None else unescaped("--delimiter", delimiter),
    )


def _parquet(topic: str, files: tuple[Path, ...], *, as_json: bool, **how: Any) -> int:
    from appliance.cli.columns import send_parquet

    started_s = time.monotonic()
    sent = send_parquet(how.pop("bootstrap"), topic, files, **how)
    took_s = time.monotonic() - started_s
    delivered = sent.delivered
    if as_json:
        print_json(
            {
                "topic": topic,
                "delivered": delivered,
                "failed": sent.rows - delivered,
                "seconds": round(took_s, 3),
                "error": None if sent.fault is None else str(sent.fault),
            }
        )
    if sent.fault is not None:
        raise sent.fault
    if not as_json and sys.stderr.isatty():
        click.echo(f"{_records_text(delivered)} to {topic} in {took_s:.2f} s", err=True)
    return 0


def _fault(
    topic: str,
    deliveries: Deliveries,
    *,
    unsettled: int,
    watch: RetryWatch,
    bad_input: NoKey | None,
) -> Exception | None:
    """Why not everything was sent; None where it was."""
    lost = deliveries.failed + unsettled
    if lost:
        reason = refusal(deliveries.first_error) if deliveries.first_error is not None else "no answer"
        last = f"; last answer: {watch.last}" if watch.last is not None else ""
        return BrokerError(
            f"{topic}: {lost} of {lost + deliveries.delivered} records were not acknowledged: {reason}{last}"
        )
    if bad_input is not None:
        return NoKey(f"{bad_input}; {_records_text(deliveries.delivered)} before this line sent")
    return None


def _records_text(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _warn(text: str) -> None:
    say(f"appliance: {text}", err=True)


def send(
    client: Producer,
    topic: str,
    records: Iterator[Record],
    partition: int | None,
    *,
    headers: list[tuple[str, str | bytes | None]],
    deliveries: Deliveries,
) -> None:
    """Hands every record to librdkafka; waits where its queue is full, stops where the broker refused one."""
    place = ANY_PARTITION if partition is None else partition
    own_headers = headers or None
    for key, value in records:
        while True:
            try:
                client.produce(topic, value, key, place, on_delivery=deliveries, headers=own_headers)
            except BufferError:
                client.poll(0.1)
            else:
                break
        client.poll(0)
        if deliveries.failed:
            return


def _records(
    reader: RecordReader, files: tuple[Path, ...], *, whole: bool, progress: Progress
) -> Iterator[Record]:
    turn = reader.whole if whole else reader.lines
    for path in files or (STANDARD_INPUT,):
        if path == STANDARD_INPUT:
            yield from turn(sys.stdin.buffer, progress)
        else:
            with path.open("rb") as source:
                try:
                    yield from turn(source, progress)
                except NoKey as fault:
                    raise NoKey(f"{path}: {fault}") from None


@contextmanager
def transaction_of(client: Producer) -> Iterator[Callable[[], None]]:
    """With `-X transactional.id=…`, a transaction around everything that is sent; what it yields commits.

    What is not committed is aborted at the end.
    """
    if "transactional.id" not in said_options():
        yield lambda: None
        return
    asked(lambda: client.init_transactions(MESSAGE_TIMEOUT_S))
    asked(client.begin_transaction)
    is_committed = False

    def commit() -> None:
        nonlocal is_committed
        asked(lambda: client.commit_transaction(MESSAGE_TIMEOUT_S))
        is_committed = True

    try:
        yield commit
    finally:
        if not is_committed:
            asked(lambda: client.abort_transaction(MESSAGE_TIMEOUT_S))
            _warn("the transaction was aborted: consumers with read_committed see none of these records")


@contextmanager
def progress_of(files: tuple[Path, ...]) -> Iterator[Progress]:
    """A bar on standard error where files are read and somebody watches; else nothing."""
    if not files or STANDARD_INPUT in files or not sys.stderr.isatty() or not is_installed("rich"):
        yield lambda length_bytes: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sum(path.stat().st_size for path in files))
        unshown_bytes = 0

        def advance(length_bytes: int) -> None:
            nonlocal unshown_bytes
            unshown_bytes += length_bytes
            if unshown_bytes >= PROGRESS_STEP_BYTES:
                bar.advance(task, unshown_bytes)
                unshown_bytes = 0

        yield advance
