"""The log of a process: formats, fields for systemd, limits and levels."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance import journal
from appliance.clock import ManualClock
from appliance.journal import LINES_MAX, WINDOW_MS, LineLimit
from appliance.journal_events import EVENTS, OTHER, described
from appliance.journal_json import JsonFormatter
from appliance.journal_systemd import JournalHandler


def record(text: str, *values: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("appliance.room", level, "file.py", 1, text, values, None)


def told(text: str, *values: object) -> dict[str, Any]:
    line = JsonFormatter("ioproc 0.0").format(record(text, *values))
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_line_is_a_json_object_with_its_event_and_values() -> None:
    line = told("slot %d left the ISR of %s", 2, "orders-0, orders-3")
    assert (line["event"], line["slot"], line["partitions"]) == ("isr-shrunk", 2, "orders-0, orders-3")
    assert (line["level"], line["process"], line["pid"]) == ("WARNING", "ioproc 0.0", os.getpid())
    assert line["message"] == "slot 2 left the ISR of orders-0, orders-3"
    assert line["time"].endswith("Z")


def test_line_that_is_a_whole_text_has_its_event_too() -> None:
    line = told("connection 7 from 10.0.0.1:99 (me) closed: not Kafka (and 12 more like it)")
    assert line["event"] == "connection-closed"
    assert line["connection"] == "connection 7 from 10.0.0.1:99 (me)"
    assert line["reason"] == "not Kafka"
    assert line["suppressed"] == 12


def test_line_of_a_library_is_another_event_and_names_its_logger() -> None:
    line = told("something happened")
    assert (line["event"], line["logger"]) == (OTHER, "appliance.room")


def test_what_a_client_sent_stays_one_line_of_valid_json() -> None:
    hostile = 'x"}\n{"event":"stopped"\ud800\x1b'
    line = told("connection from %s closed: %s", hostile, "no")
    assert line["event"] == "connection-refused"
    assert "\n" not in line["address"]
    assert "\x1b" not in line["message"]


def test_text_of_a_client_cannot_make_the_search_for_an_event_slow() -> None:
    hostile = " of : closed " * 300 + "%s (pid "
    began_s = time.process_time()
    for _ in range(20):
        described(record(hostile), hostile)
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_each_event_is_found_by_its_values_and_by_its_text(event: Any) -> None:
    values = tuple(
        17 if kind in "dx" else 1.5 if kind == "f" else f"v{index}"
        for index, kind in enumerate(_kinds(event.template))
    )
    found, named = described(record(event.template, *values), event.template % values)
    assert found == event.name
    assert tuple(named.values()) == values
    text = event.template % values
    by_text, _ = described(record(text), text)
    of_text = next(each for each in EVENTS if each.name == by_text) if by_text != OTHER else None
    # A general text such as "%s: %s" may be that of several events.
    assert of_text is not None or event.template in ("%s", "%s: %s")


def _kinds(template: str) -> list[str]:
    import re

    return re.findall(r"%(?:\.\d+)?([sdrxf])", template)


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.settimeout(5)
        yield sock


def fields_of(datagram: bytes) -> dict[str, str]:
    found, at = {}, 0
    while at < len(datagram):
        end = datagram.index(b"\n", at)
        name, equals, value = datagram[at:end].partition(b"=")
        at = end + 1
        if not equals:
            (length,) = struct.unpack_from("<Q", datagram, at)
            value = datagram[at + 8 : at + 8 + length]
            at += 8 + length + 1
        found[name.decode()] = value.decode()
    return found


def test_each_event_has_a_message_id_that_stays_and_a_library_has_none(journald: socket.socket) -> None:
    handler = JournalHandler("ioproc 0.0", None, path=journald.getsockname())
    found = []
    for line in (record("flush failed: %s", "EIO"), record("flush failed: no"), record("something happened")):
        handler.emit(line)
        found.append(fields_of(journald.recv(1 << 16)).get("MESSAGE_ID"))
    handler.close()
    assert found == ["b0a249b8d64d5fc0aa02c50f69b5a490", "b0a249b8d64d5fc0aa02c50f69b5a490", None]


def test_systemds_journal_gets_fields(journald: socket.socket) -> None:
    handler = JournalHandler("ioproc 0.0", None, path=journald.getsockname())
    handler.emit(record("slot %d left the ISR of %s", 2, "orders-0", level=logging.ERROR))
    fields = fields_of(journald.recv(65536))
    assert fields == {
        "MESSAGE": "ioproc 0.0: slot 2 left the ISR of orders-0",
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "appliance",
        "APPLIANCE_EVENT": "isr-shrunk",
        "APPLIANCE_PROCESS": "ioproc 0.0",
        "MESSAGE_ID": "f9cef3c8f094534c87db6387eb08717e",
        "SLOT": "2",
        "PARTITIONS": "orders-0",
    }
    handler.close()


def test_traceback_is_one_field_and_a_client_forges_none(journald: socket.socket) -> None:
    handler = JournalHandler("netproc 0", None, path=journald.getsockname())
    line = record("connection from %s closed: %s", "a\nPRIORITY=0", "b")
    try:
        raise ValueError("no\nFORGED=1")
    except ValueError:
        line.exc_info = sys.exc_info()
    handler.emit(line)
    fields = fields_of(journald.recv(65536))
    assert fields["PRIORITY"] == "4"
    assert "FORGED" not in fields
    assert "ValueError" in fields["MESSAGE"]
    assert fields["ADDRESS"] == "a\\nPRIORITY=0"
    handler.close()


def test_process_does_not_wait_for_a_journal_that_takes_nothing(journald: socket.socket) -> None:
    handler = JournalHandler("netproc 0", None, path=journald.getsockname())
    began_s = time.monotonic()
    for _ in range(2000):
        handler.emit(record("flush failed: %s", "x" * 1000))
    assert time.monotonic() - began_s < 10
    kept = 0
    journald.settimeout(0.2)
    try:
        while True:
            journald.recv(65536)
            kept += 1
    except TimeoutError:
        pass
    assert kept < 2000
    handler.emit(record("stopped"))
    lost = fields_of(journald.recv(65536))
    assert lost["APPLIANCE_EVENT"] == "lines-lost"
    assert int(lost["COUNT"]) == 2000 - kept
    assert fields_of(journald.recv(65536))["APPLIANCE_EVENT"] == "stopped"
    handler.close()


def test_journal_that_was_restarted_gets_the_next_line(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(path)
        handler = JournalHandler("netproc 0", None, path=path)
    os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
        second.bind(path)
        second.settimeout(5)
        handler.emit(record("stopped"))
        assert fields_of(second.recv(65536))["APPLIANCE_EVENT"] == "stopped"
    handler.close()


def test_line_goes_to_standard_error_while_there_is_no_journal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(path)
        handler = JournalHandler("netproc 0", None, path=path)
    handler.setFormatter(journal.LineFormatter("netproc 0", for_systemd=True))
    handler.emit(record("stopped"))
    assert capfd.readouterr().err == "<4>netproc 0: stopped\n"
    handler.close()


def test_process_under_systemd_logs_to_its_journal_and_without_it_to_standard_error() -> None:
    program = (
        "import os, sys; os.environ['JOURNAL_STREAM'] = '%d:%d' % (lambda s: (s.st_dev, s.st_ino))(os.fstat(2));"
        " from appliance import journal, journal_systemd;"
        " journal_systemd.SOCKET = sys.argv[1]; journal.start('keys');"
        " import logging; logging.getLogger('appliance.x').error('stopped')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "/nowhere/socket"], capture_output=True, text=True, check=True
    )
    assert done.stderr == "<3>keys: stopped\n"


def test_lines_of_a_kind_are_limited_and_counted() -> None:
    clock, lines = ManualClock(monotonic_ns=1), list[str]()
    limit = LineLimit(clock)

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("appliance")
    handler = Kept()
    handler.addFilter(limit)
    logger.addHandler(handler)
    try:
        for number in range(LINES_MAX + 250):
            logger.warning("flush failed: %s", number)
        logger.warning("another %s", 1)
        assert len(lines) == LINES_MAX + 1
        clock.advance(WINDOW_MS)
        logger.warning("flush failed: %s", "again")
    finally:
        logger.removeHandler(handler)
    assert lines[-2] == f"250 more lines like this one were left out: flush failed: {LINES_MAX}"
    assert lines[-1] == "flush failed: again"


def test_flood_of_one_kind_of_whole_texts_does_not_hide_another_kind() -> None:
    limit = LineLimit(ManualClock(monotonic_ns=1))
    passed = [limit.filter(record(f"partition {number} is offline")) for number in range(LINES_MAX + 5)]
    assert sum(passed) == LINES_MAX
    assert limit.filter(record("not removed, the next start tries again: no"))


def test_count_is_told_by_the_timer_of_the_process() -> None:
    clock, armed = ManualClock(monotonic_ns=1), list[Any]()
    limit = LineLimit(clock)
    limit.on_first_left_out = lambda: armed.append(1)
    passed = [limit.filter(record("x %s", number)) for number in range(LINES_MAX + 5)]
    assert sum(passed) == LINES_MAX
    assert armed == [1]


def test_level_is_that_of_the_kind_and_libraries_stay_at_info() -> None:
    program = (
        "import logging; from appliance import journal;"
        " journal.style('text', {'root': 'WARN', 'netproc': 'DEBUG'}); journal.start('netproc 3');"
        " own, other = logging.getLogger('appliance.x'), logging.getLogger('kazoo');"
        " own.debug('a'); other.debug('secret'); journal.set_levels({'root': 'ERROR'}); own.warning('b');"
        " own.error('c')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [line.rpartition(" ")[2] for line in done.stderr.splitlines()] == ["a", "c"]


def test_text_form_loads_no_table_of_events() -> None:
    program = (
        "import sys; from appliance import journal; journal.start('keys');"
        " print('appliance.journal_events' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_levels_have_kafkas_names() -> None:
    assert set(journal.LEVELS) == {"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}
