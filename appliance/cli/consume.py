"""`appliance consume`: prints the records of topics and ends at their end, or follows them; alone or in a group."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from appliance.cli.client import asked, consumer, refusal
from appliance.cli.columns import COLUMNS as FILE_COLUMNS
from appliance.cli.columns import TEXT_COLUMNS, TO, chosen, write_columns
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.decoded import Decoding
from appliance.cli.format_string import ENCODINGS, format_string
from appliance.cli.group_reading import GroupReader, Sink, Stop
from appliance.cli.options import client_options
from appliance.cli.output import TerminalSink, say
from appliance.cli.output_file import STANDARD_OUTPUT, OutputFile, opened
from appliance.cli.positions import FORMS, Anchor, Place, Span, parse_place, partitions_of, spans
from appliance.cli.record_format import COLUMNS, Formatter, json_line, text_formatter
from appliance.cli.topic_names import named_topics, regex_option

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

BATCH: Final = 1000
POLL_S: Final = 0.5
STALL_S: Final = 30.0
PARTITION_MAX: Final = (1 << 31) - 1
END_OF_PARTITION: Final = -191  # KafkaError._PARTITION_EOF

Partition = tuple[str, int]


def _numbers(_context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
    found = [each.strip() for text in texts for each in text.split(",")]
    if wrong := [
        each for each in found if not (each.isascii() and each.isdigit() and int(each) <= PARTITION_MAX)
    ]:
        raise click.BadParameter(f"{wrong[0]!r} is no number of a partition", param=parameter)
    return tuple(map(int, found))


@click.command(short_help="Print the records of a topic.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@regex_option
@click.option("--from", "place", metavar="WHERE", default="beginning", show_default=True, help=f"{FORMS}.")
@click.option(
    "--until",
    "until_text",
    metavar="WHERE",
    help="End before this place; the same forms as --from.  [default: the end at the start of the command]",
)
@click.option("--count", "-n", type=click.IntRange(min=1), help="Stop after this number of records.")
@click.option(
    "--partition",
    "-p",
    "only",
    metavar="NUMBER,...",
    multiple=True,
    callback=_numbers,
    help="Only these partitions; repeatable.  [default: all]",
)
@click.option("--follow", "-F", is_flag=True, help="Wait for more records at the end.")
@click.option(
    "--group",
    "-g",
    metavar="GROUP",
    help="Join GROUP. Start at its committed offsets, or at --from if there are none. Commit printed records.",
)
@click.option(
    "--print",
    "columns",
    metavar="COLUMN,...",
    default="value",
    show_default=True,
    help=f"Columns to print, separated by tabs: {', '.join(COLUMNS)}.",
)
@click.option(
    "--format",
    "-f",
    "layout",
    metavar="TEXT",
    help="Format of each record: %t topic, %p partition, %o offset, %e leader epoch, %T timestamp in ms, %d as a date,"
    " %k key, %v value, %h headers, %H number of headers, %K and %V length of key and value, %i number of the record,"
    " %%, \\n \\t \\xHH. With modifiers: %v{hex}, {base64}, {json}; %o{big64}, {little64}, {hex64}; %d{strftime[%F]};"
    " %h{%k=%v;}. %{ is a brace.",
)
@click.option(
    "--encoding",
    type=click.Choice(tuple(ENCODINGS)),
    default="raw",
    help="How --print and --format write keys and values.  [default: raw; on a terminal, with escapes for bytes that"
    " would control it]",
)
@click.option(
    "--schemas",
    "schema_directory",
    metavar="DIRECTORY",
    type=click.Path(exists=True, file_okay=False),
    help="Decode keys and values by the schemas of Avro and Protobuf in DIRECTORY (docs/console.md).",
)
@click.option(
    "--schema-registry",
    metavar="URL",
    help="Decode keys and values by the schemas of this registry, such as http://127.0.0.1:8081.",
)
@click.option(
    "--decode",
    type=click.Choice(("auto", "avro", "protobuf")),
    help="How to decode. Without a schema, protobuf shows the numbers of fields.  [default: auto with a place of"
    " schemas]",
)
@click.option("--null-marker", metavar="TEXT", default="", help="Text to print for a null key or value.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a line of JSON, with all fields.")
@click.option(
    "--to", type=click.Choice(TO), help="Write records as Parquet, an Arrow stream, or lines of JSON."
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="File for --to. The file gets its name when it is complete.  [default: standard output]",
)
@click.option(
    "--columns",
    "file_columns",
    metavar="COLUMN,...",
    help=f"Columns for --to parquet or arrow: {', '.join(FILE_COLUMNS)}.  [default: all]",
)
@click.option(
    "--text", metavar="COLUMN,...", help="Columns that --to writes as text instead of bytes: key, value."
)
@client_options
def consume(
    *,
    topics: tuple[str, ...],
    is_regex: bool,
    place: str,
    until_text: str | None,
    count: int | None,
    only: tuple[int, ...],
    follow: bool,
    group: str | None,
    columns: str,
    layout: str | None,
    encoding: str,
    schema_directory: str | None,
    schema_registry: str | None,
    decode: str | None,
    null_marker: str,
    as_json: bool,
    to: str | None,
    output: str | None,
    file_columns: str | None,
    text: str | None,
    bootstrap: str,
) -> None:
    """Print the records of topics. They are in order within a partition.

    Without --group the command joins no group and commits nothing. With --group the command commits
    records after it has printed them. After a crash, some records may be printed twice, and none is lost.
    Without --follow, a member of a group ends when the group has read all records that existed at the start, also
    those in partitions of other members. It exits with 1 if other members hold unread records and make no progress.
    """
    start = parse_place(place)
    until = None if until_text is None else parse_place(until_text, "--until")
    is_decoded = any(each is not None for each in (schema_directory, schema_registry, decode))
    _check(
        topics=topics,
        start=start,
        until=until,
        only=only,
        follow=follow,
        group=group,
        to=to,
        names_columns=any(each is not None for each in (file_columns, text)),
        output=output,
    )
    if to in ("parquet", "arrow"):
        if is_decoded:
            raise click.UsageError(f"--to {to} writes keys and values as they are, without --decode")
        if is_regex or as_json or layout is not None or len(topics) > 1:
            raise click.UsageError(f"--to {to} takes one topic, and no --regex, --json or --format")
        chosen_columns = chosen("--columns", file_columns, FILE_COLUMNS) or list(FILE_COLUMNS)
        chosen_text = chosen("--text", text, TEXT_COLUMNS)
        if absent := [each for each in chosen_text if each not in chosen_columns]:
            raise click.UsageError(f"--text {absent[0]}: --columns leaves it out")
        write_columns(
            bootstrap,
            topics[0],
            to=to,
            output=output or STANDARD_OUTPUT,
            place=start,
            until=until,
            partitions=only,
            count=count,
            columns=chosen_columns,
            text=chosen_text,
        )
        return
    as_json = as_json or to == "json"
    formatter = _formatter(
        columns, layout=layout, encoding=encoding, null_marker=null_marker, as_json=as_json
    )
    if is_decoded:
        decoding = Decoding(decode or "auto", schema_directory, schema_registry, warn=_warn)
        formatter = decoding.json_line() if as_json else decoding.formatter(formatter)
    options: dict[str, object] = {
        "enable.partition.eof": True,
        "check.crcs": True,
        # The end of a compacted or transactional partition shows only in an empty answer.
        "fetch.wait.max.ms": 500 if follow else 50,
    }
    with opened(output or STANDARD_OUTPUT, may_be_terminal=True) as opened_sink:
        sink = _shown_on(opened_sink, as_json=as_json) if output is None else opened_sink
        if group is not None:
            options["auto.offset.reset"] = "latest" if start.anchor is Anchor.END else "earliest"
            with Stop() as stop:
                member = GroupReader(
                    bootstrap, group, options=options, formatter=formatter, sink=sink, warn=_warn
                )
                try:
                    named = _named(member.topics, topics, is_regex=is_regex)
                    member.read(named, count=count, follows=follow, stop=stop)
                finally:
                    member.close()
                stop.end()
            return
        client = consumer(bootstrap, options)
        try:
            named = _named(
                lambda: asked(lambda: client.list_topics(timeout=REQUEST_TIMEOUT_S)).topics,
                topics,
                is_regex=is_regex,
            )
            ends = _assign(client, named, only, place=start, until=until, follow=follow)
            if ends:
                Reader(client, formatter, None if follow else ends, sink).run(count)
        finally:
            client.close()


def _check(
    *,
    topics: Sequence[str],
    start: Place,
    until: Place | None,
    only: Sequence[int],
    follow: bool,
    group: str | None,
    to: str | None,
    names_columns: bool,
    output: str | None,
) -> None:
    """Raises click.UsageError where flags exclude each other."""
    if to is None and (names_columns or output is not None):
        raise click.UsageError("--output, --columns and --text need --to")
    if to == "json" and names_columns:
        raise click.UsageError("--to json writes all fields; --columns and --text are for parquet and arrow")
    if to in ("parquet", "arrow") and (follow or group is not None):
        raise click.UsageError(f"--to {to} cannot be used with --follow or --group")
    if output not in (None, STANDARD_OUTPUT) and (follow or group is not None):
        raise click.UsageError(
            "--output cannot be used with --follow or --group, because the file gets its name at the end: redirect"
            " standard output"
        )
    if until is not None and (follow or group is not None):
        raise click.UsageError("--until cannot be used with --follow or --group")
    if only and len(topics) > 1:
        raise click.UsageError("--partition takes one topic")
    if group is not None and (only or start.anchor not in (Anchor.BEGINNING, Anchor.END) or start.distance):
        raise click.UsageError("--group allows only --from beginning or end, and no --partition")


def _shown_on(sink: OutputFile, *, as_json: bool) -> Sink:
    """Return where to print records: with escapes on a terminal, unless somebody has asked for the bytes."""
    source = click.get_current_context().get_parameter_source("encoding")
    if sys.stdout.isatty() and (as_json or source is ParameterSource.DEFAULT):
        return TerminalSink(sink, as_json=as_json)
    return sink


def _formatter(
    columns: str, *, layout: str | None, encoding: str, null_marker: str, as_json: bool
) -> Formatter:
    chosen = tuple(column.strip() for column in columns.split(","))
    if unknown := [column for column in chosen if column not in COLUMNS]:
        raise click.UsageError(
            f"--print: unknown column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}"
        )
    if as_json and layout is not None:
        raise click.UsageError("--format and --json cannot be used together")
    if as_json:
        return json_line
    if layout is not None:
        return format_string(layout, encoding=encoding, null_marker=null_marker)
    encode = None if encoding == "raw" else ENCODINGS[encoding]
    return text_formatter(chosen, null_marker=null_marker, encode=encode)


class Reader:
    """Prints until `count`, or until each partition reached its end in `ends`; with `ends` None it follows."""

    __slots__ = ("_client", "_ends", "_follows", "_formatter", "_sink")

    def __init__(
        self, client: Consumer, formatter: Formatter, ends: dict[Partition, int] | None, sink: Sink
    ) -> None:
        self._client = client
        self._formatter = formatter
        self._ends = ends or {}
        self._follows = ends is None
        self._sink = sink

    def run(self, count: int | None) -> None:
        """Raises BrokerError where the broker refuses, or is silent for long while records are due."""
        left = count
        heard_s = time.monotonic()
        while (self._follows or self._ends) and left != 0:
            printed = self.turn(left)
            if printed is None:
                if not self._follows and time.monotonic() - heard_s > STALL_S:
                    raise BrokerError(f"no record arrived for {STALL_S:.0f} s; still expected: {self._due()}")
                continue
            heard_s = time.monotonic()
            if left is not None:
                left -= printed

    def turn(self, left: int | None) -> int | None:
        """Prints what is there, at most `left` records; how many, or None where nothing came."""
        # One by poll, the rest at once: consume() alone holds the first back until the batch is full.
        first = asked(lambda: self._client.poll(POLL_S))
        if first is None:
            return None
        batch = [first]
        wanted = BATCH if left is None else min(BATCH, left - 1)
        if wanted:
            batch += asked(lambda n=wanted: self._client.consume(n, timeout=0))  # type: ignore[misc]
        printed = [message for message in batch if self._take(message)]
        self._sink.flush()
        return len(printed)

    def _take(self, message: Message) -> bool:
        """Prints a record and says True; notes the end of a partition, or raises what a broker refused."""
        place: Partition = (message.topic(), message.partition())  # type: ignore[assignment]
        error = message.error()
        if error is not None:
            self._hear(error, message.topic(), place)
            return False
        if not self._follows:
            end = self._ends.get(place)
            offset: int = message.offset()  # type: ignore[assignment]
            if end is None or offset >= end:
                self._ends.pop(place, None)
                return False
            if offset + 1 == end:
                del self._ends[place]
        self._sink.write(self._formatter(message))
        return True

    def _hear(self, error: KafkaError, topic: str | None, place: Partition) -> None:
        if error.code() == END_OF_PARTITION:
            self._ends.pop(place, None)
        elif topic is not None or error.fatal():
            raise BrokerError(f"{topic}-{place[1]}: {refusal(error)}")
        # Anything else is about a connection or a group that is not used; librdkafka tries again by itself.

    def _due(self) -> str:
        return ", ".join(f"{topic}-{number} to {end}" for (topic, number), end in sorted(self._ends.items()))


def _named(
    existing: Callable[[], Mapping[str, object]], texts: Sequence[str], *, is_regex: bool
) -> list[str]:
    return named_topics(texts, existing() if is_regex else (), is_regex=is_regex)


def _assign(
    client: Consumer,
    topics: Sequence[str],
    only: tuple[int, ...],
    *,
    place: Place,
    until: Place | None,
    follow: bool,
) -> dict[Partition, int]:
    """Assigns what is to be read, and tells the end of each partition of it."""
    from confluent_kafka import TopicPartition

    found: dict[Partition, Span] = {}
    for topic in topics:
        numbers = partitions_of(client, topic, only)
        wanted = spans(client, topic, numbers, place=place, until=until, warn=_warn)
        found |= {(topic, span.partition): span for span in wanted if follow or span.start < span.end}
    if found:
        client.assign(
            [TopicPartition(topic, span.partition, span.start) for (topic, _), span in found.items()]
        )
    return {each: span.end for each, span in found.items()}


def _warn(text: str) -> None:
    say(f"appliance: {text}", err=True)
