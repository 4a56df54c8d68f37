"""`appliance log dump`: what the files of a segment hold, straight off the disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from appliance.cli.index_dump import (
    offset_index_facts,
    snapshot_facts,
    time_index_facts,
    transaction_index_facts,
)
from appliance.cli.log_verify import verify
from appliance.cli.output import plain_lines
from appliance.cli.record_format import shown_time
from appliance.cli.segment_dump import Fact, log_facts
from appliance.errors import HostFault, OperatorFault
from appliance.log.file_names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_segment_file_name,
)

SHOWN_CHARACTERS: Final = 200

_INDEX_FACTS: Final[dict[str, Callable[[Path, int], Iterator[Fact]]]] = {
    OFFSET_INDEX: offset_index_facts,
    TIME_INDEX: time_index_facts,
    TRANSACTION_INDEX: transaction_index_facts,
    PRODUCER_SNAPSHOT: snapshot_facts,
}


@click.group(short_help="Show the contents of log files.")
def log() -> None:
    """Show the contents of log files. The commands read the disk and need no broker."""


@log.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--records", "with_records", is_flag=True, help="Also show each record, decompressed.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON with stable keys.")
def dump(*, files: tuple[Path, ...], with_records: bool, as_json: bool) -> int:
    """Show batches of .log files, entries of .index, .timeindex and .txnindex files, producers of .snapshot files.

    The command verifies checksums, and compares offset indexes with their log. It shows where an incomplete end
    begins. The exit code is 1 if anything is wrong. With --records, records of __consumer_offsets and
    __transaction_state are decoded.
    """
    sound = True
    for path in files:
        for fact in dump_file(path, with_records=with_records):
            if as_json:
                sys.stdout.write(json.dumps(fact, ensure_ascii=True) + "\n")
            else:
                sys.stdout.write(plain_lines(_LINES[fact["kind"]](fact)) + "\n")
            if fact["kind"] == "summary" and fact["fault"]:
                sound = False
                sys.stdout.flush()
                click.echo(f"appliance: {path}: {fact['fault']}", err=True)
    return 0 if sound else 1


def dump_file(path: Path, *, with_records: bool) -> Iterator[Fact]:
    """Facts of one file, by the kind that its name tells.

    Raises:
        OperatorFault: the file cannot be read, or its name is none of a segment's.
    """
    name = path.name
    for suffix in (DELETED, CLEANED, SWAP):
        name = name.removesuffix(suffix)
    base_offset, kind = parse_segment_file_name(name) or (0, "")
    if kind == LOG:
        facts = log_facts(path, base_offset, with_records=with_records)
    elif kind in _INDEX_FACTS:
        facts = _INDEX_FACTS[kind](path, base_offset)
    else:
        known = ", ".join([LOG, *_INDEX_FACTS])
        raise OperatorFault(
            f"{path}: not the name of a segment file: twenty digits, followed by one of {known}"
        )
    try:
        for fact in facts:
            yield {"file": str(path), **fact}
    except OSError as fault:
        raise OperatorFault(f"{path}: {fault.strerror}") from fault
    except HostFault as fault:
        raise OperatorFault(str(fault)) from fault


def _batch_line(fact: Fact) -> str:
    flags = [name for name in ("transactional", "control") if fact[name]]
    producer = ""
    if fact["producer_id"] >= 0:
        producer = f"  producer {fact['producer_id']}/{fact['producer_epoch']}"
        if fact["base_sequence"] >= 0:
            producer += f" sequence {fact['base_sequence']}-{fact['last_sequence']}"
    return (
        f"position {fact['position']}  size {fact['size_bytes']}  "
        f"offsets {fact['base_offset']}-{fact['last_offset']}  records {fact['records']}  "
        f"codec {fact['codec']}  leader epoch {fact['leader_epoch']}  "
        f"{fact['timestamp_type']} {_time(fact['max_timestamp_ms'])}{producer}  "
        f"crc {fact['crc']} {'ok' if fact['crc_ok'] else 'BAD'}{''.join('  ' + flag for flag in flags)}"
        f"{_fault(fact)}"
    )


def _record_line(fact: Fact) -> str:
    if "control" in fact:
        epoch = fact["coordinator_epoch"]
        told = fact["control"] + ("" if epoch is None else f" by coordinator epoch {epoch}")
    elif fact.get("decoded"):
        told = _decoded(fact["decoded"])
    else:
        headers = "".join(f"  {name}={_shown(value)}" for name, value in fact["headers"])
        told = f"key {_shown(fact['key'])}  value {_shown(fact['value'])}{headers}"
    return f"  offset {fact['offset']}  {_time(fact['timestamp_ms'])}  {told}"


def _decoded(decoded: dict[str, Any]) -> str:
    """A record of an internal topic on one line: what it is, and its fields."""
    fields = [(name, value) for name, value in decoded.items() if name not in ("record", "deleted")]
    text = "  ".join(f"{name} {_shortened(json.dumps(value, ensure_ascii=False))}" for name, value in fields)
    return f"{decoded['record']}{' deleted' if decoded['deleted'] else ''}  {text}"


def _entry_line(fact: Fact) -> str:
    if "timestamp_ms" in fact:
        return f"timestamp {_time(fact['timestamp_ms'])}  offset {fact['offset']}{_fault(fact)}"
    return f"offset {fact['offset']}  position {fact['position']}{_fault(fact)}"


def _aborted_line(fact: Fact) -> str:
    return (
        f"producer {fact['producer_id']}  offsets {fact['first_offset']}-{fact['last_offset']}  "
        f"last stable offset {fact['last_stable_offset']}"
    )


def _producer_line(fact: Fact) -> str:
    opened = fact["transaction_first_offset"]
    return (
        f"producer {fact['producer_id']}/{fact['producer_epoch']}  last sequence {fact['last_sequence']}  "
        f"last offset {fact['last_offset']}  {_time(fact['last_timestamp_ms'])}  "
        f"coordinator epoch {fact['coordinator_epoch']}"
        + ("" if opened is None else f"  transaction open since offset {opened}")
    )


def _summary_line(fact: Fact) -> str:
    if fact["type"] == "log":
        told = (
            f"{fact['batches']} batches, {fact['records']} records, "
            f"offsets {fact['base_offset']} up to {fact['next_offset']}, {fact['valid_bytes']} bytes"
        )
        if fact["allocated_ahead_bytes"]:
            told += f", then {fact['allocated_ahead_bytes']} bytes allocated ahead"
    else:
        count = fact.get("entries", fact.get("producers"))
        told = f"{fact['type']}: {count} entries, {fact['size_bytes']} bytes"
    return f"{fact['file']}: {told}"


def _undecodable_line(fact: Fact) -> str:
    return f"  records of the batch at offset {fact['base_offset']} cannot be read: {fact['fault']}"


_LINES: Final[dict[str, Callable[[Fact], str]]] = {
    "batch": _batch_line,
    "record": _record_line,
    "undecodable": _undecodable_line,
    "entry": _entry_line,
    "aborted transaction": _aborted_line,
    "producer": _producer_line,
    "summary": _summary_line,
}


def _fault(fact: Fact) -> str:
    return f"  WRONG: {fact['fault']}" if fact["fault"] else ""


def _time(timestamp_ms: int) -> str:
    return "-" if timestamp_ms < 0 else shown_time(timestamp_ms)


def _shown(value: Any) -> str:
    """A key or value on one line of bounded length."""
    if value is None:
        return "null"
    return _shortened(repr(value) if isinstance(value, str) else f"base64 {value['base64']}")


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(text)} characters)"


log.add_command(verify)
