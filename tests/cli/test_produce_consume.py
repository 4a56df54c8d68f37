"""produce and consume against librdkafka's in-memory broker: a real Kafka protocol, up in a millisecond."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.cli.command import Outcome, appliance, environment


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Address of a mock cluster that creates topics of four partitions when they are asked for."""
    client = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = client.list_topics(timeout=30).brokers.values()
    yield f"{broker.host}:{broker.port}"
    client.flush(0)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


class Console:
    """produce and consume with the bootstrap address filled in."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic

    def produce(self, given: bytes, *arguments: object) -> Outcome:
        return appliance("produce", self.topic, *arguments, "--bootstrap", self.bootstrap, given=given)

    def consume(self, *arguments: object) -> Outcome:
        return appliance("consume", self.topic, *arguments, "--bootstrap", self.bootstrap)

    def records(self, *arguments: object) -> list[dict[str, object]]:
        told = self.consume("--json", *arguments).succeeded()
        return [json.loads(line) for line in told.output.splitlines()]


@pytest.fixture
def console(bootstrap: str, topic: str) -> Console:
    return Console(bootstrap, topic)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back_in_order_with_every_codec(console: Console, codec: str) -> None:
    lines = b"".join(b"line %d \xff\x00 of bytes\n" % number for number in range(2000))
    assert console.produce(lines, "--partition", 0, "--compression", codec).succeeded().output == b""
    assert console.consume().succeeded().output == lines


def test_empty_line_is_an_empty_record_and_a_last_line_needs_no_feed(console: Console) -> None:
    console.produce(b"a\n\nb", "--partition", 1).succeeded()
    assert [record["value"] for record in console.records()] == ["a", "", "b"]


def test_carriage_return_is_a_byte_like_any_other(console: Console) -> None:
    console.produce(b"a\r\n", "--partition", 1).succeeded()
    assert [record["value"] for record in console.records()] == ["a\r"]


def test_keys_headers_and_nulls_survive(console: Console) -> None:
    console.produce(
        b"k:v\nk:NULL\nNULL:w\n:\n",
        *("--partition", 2, "--key-separator", ":", "--null-marker", "NULL"),
        *("--header", "a=1", "--header", "b=x=y", "--header", "a=2"),
    ).succeeded()
    records = console.records()
    assert [(record["key"], record["value"]) for record in records] == [
        ("k", "v"),
        ("k", None),
        (None, "w"),
        ("", ""),
    ]
    assert records[0]["headers"] == [["a", "1"], ["b", "x=y"], ["a", "2"]]
    assert records[0]["partition"] == 2
    assert records[0]["timestamp_type"] == "CreateTime"
    shown = console.consume("--print", "partition,offset,key,value,headers", "--null-marker", "-").succeeded()
    assert shown.text.splitlines()[1] == "2\t1\tk\t-\ta=1,b=x=y,a=2"


def test_one_key_is_every_records(console: Console) -> None:
    console.produce(b"a\nb\n", "--partition", 0, "--key", "k").succeeded()
    assert [(record["key"], record["value"]) for record in console.records()] == [("k", "a"), ("k", "b")]


def test_bytes_that_are_no_text_come_as_base64(console: Console) -> None:
    console.produce(b"\xff\xfe\n", "--partition", 0).succeeded()
    assert console.records()[0]["value"] == {"base64": "//4="}


def test_missing_key_separator_is_refused_and_what_came_before_is_sent(console: Console) -> None:
    told = console.produce(b"a=1\nb\nc=3\n", "--partition", 0, "--key-separator", "=")
    assert told.code == 1
    assert told.errors == "appliance: line 2: no key separator '=' in 'b'; 1 record before this line sent\n"
    assert [record["key"] for record in console.records()] == ["a"]


def test_records_and_keys_may_be_separated_by_any_bytes(console: Console) -> None:
    given = b"a\tx\ny\0b\t" + b"z" * 200_000 + b"\0c\t"
    console.produce(given, "-D", "\\0", "-K", "\\t", "-p", 0).succeeded()
    assert [(each["key"], each["value"]) for each in console.records()] == [
        ("a", "x\ny"),
        ("b", "z" * 200_000),
        ("c", ""),
    ]
    for flags in (("-D", ""), ("-D", "\\q"), ("-K", "\\"), ("-D", ";", "--whole")):
        assert console.produce(b"", *flags).code == 2


def test_files_are_sent_in_order_by_line_or_whole(console: Console, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1\n2\n")
    second.write_bytes(b"3\n4")
    console.produce(b"", "--partition", 0, first, second).succeeded()
    console.produce(b"from stdin", "--partition", 1, "--whole", first, "-", second).succeeded()
    assert [record["value"] for record in console.records("--partition", 0)] == ["1", "2", "3", "4"]
    assert [record["value"] for record in console.records("--partition", 1)] == [
        "1\n2\n",
        "from stdin",
        "3\n4",
    ]


def test_a_bar_shows_how_far_a_file_is_to_who_watches_and_to_nobody_else(
    console: Console, tmp_path: Path
) -> None:
    file = tmp_path / "records"
    file.write_bytes(b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(8_000)))
    watching, terminal = os.openpty()
    with open(watching, "rb", buffering=0) as screen:
        sender = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "appliance",
                "produce",
                console.topic,
                file,
                "-p",
                "0",
                "-b",
                console.bootstrap,
            ],
            stdout=subprocess.PIPE,
            stderr=terminal,
            env={**environment(), "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(terminal)
        shown = bytearray()
        with suppress(OSError):  # the terminal's end
            while part := screen.read(65_536):
                shown += part
        assert sender.communicate()[0] == b""
    assert sender.returncode == 0
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown)
    assert re.search(rb"[1-7]\.\d/7\.7 MiB [\d.]+ MB/s ", plain), plain
    assert b"8000 records to" in plain
    assert console.produce(b"", "--partition", 0, file).succeeded().errors == ""


def test_same_key_goes_where_the_java_client_would_put_it(console: Console) -> None:
    console.produce(
        b"21=x\nfoobar=x\na-little-bit-long-string=x\nlkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8=x\n",
        "--key-separator",
        "=",
    ).succeeded()
    # Hashes from Kafka's UtilsTest.testMurmur2, made positive and taken modulo four partitions.
    murmur2 = {
        "21": -973932308,
        "foobar": -790332482,
        "a-little-bit-long-string": -985981536,
        "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    }
    expected = {key: (value & 0x7FFFFFFF) % 4 for key, value in murmur2.items()}
    assert {record["key"]: record["partition"] for record in console.records()} == expected


def test_count_offset_tail_and_partition_choose_what_is_read(console: Console) -> None:
    console.produce(b"".join(b"%d\n" % number for number in range(100)), "--partition", 0).succeeded()
    console.produce(b"other\n", "--partition", 1).succeeded()

    def values(*arguments: object) -> list[str]:
        return console.consume(*arguments).succeeded().text.split()

    assert values("--partition", 0, "--count", 3) == ["0", "1", "2"]
    assert values("--partition", 0, "--from", 97) == ["97", "98", "99"]
    assert values("--partition", 0, "--from", -2) == ["98", "99"]
    assert values("--partition", 0, "--from", -1000)[0] == "0"
    assert values("--partition", 0, "--from", 100) == []
    assert values("--partition", 1) == ["other"]
    assert len(values("--partition", "0,1", "--partition", 2)) == 101
    for wrong in ("0,", "-1", "x", 2**31):
        assert console.consume("--partition", wrong).code == 2
    assert values("--from", "end") == []
    assert sorted(values("--from", -1)) == ["99", "other"]


def test_until_ends_before_a_place_and_several_topics_are_read(console: Console) -> None:
    console.produce(b"".join(b"%d\n" % number for number in range(20)), "--partition", 0).succeeded()

    def values(*arguments: object) -> list[str]:
        return console.consume("--partition", 0, *arguments).succeeded().text.split()

    assert values("--from", 3, "--until", 6) == ["3", "4", "5"]
    assert values("--from", "+17") == ["17", "18", "19"]
    assert values("--from", "beginning", "--until", "+2") == ["0", "1"]
    assert values("--from", -3, "--until", -1) == ["17", "18"]
    assert values("--from", 6, "--until", 3) == []
    assert values("--until", 1000) == values("--from", "start", "--until", "latest") == values()
    for flags in (("--follow",), ("--group", "g")):
        assert console.consume("--until", 3, *flags).code == 2
    other = Console(console.bootstrap, f"{console.topic}-b")
    other.produce(b"x\n", "--partition", 0).succeeded()
    both = console.consume(other.topic, "--format", "%t=%v ").succeeded().text.split()
    assert len(both) == 21
    assert f"{other.topic}=x" in both


def test_offset_past_the_end_and_foreign_partition_are_refused(console: Console) -> None:
    console.produce(b"x\n", "--partition", 0).succeeded()
    told = console.consume("--partition", 0, "--from", 2)
    assert (told.code, "offset 2 is past its end, 1" in told.errors) == (1, True)
    told = console.consume("--partition", 4)
    assert (told.code, "no partition 4; it has 4" in told.errors) == (1, True)


def test_record_larger_than_any_request_is_refused_at_once(console: Console) -> None:
    told = console.produce(bytes(100_000_001), "--whole", "--partition", 0)
    assert told.code == 1
    assert told.errors.count("\n") == 1
    assert "MESSAGE_TOO_LARGE" in told.errors


def test_following_prints_at_once_what_arrives_and_ctrl_c_ends_it_with_130(console: Console) -> None:
    console.produce(b"first\n", "--partition", 0).succeeded()
    follower = subprocess.Popen(
        [sys.executable, "-m", "appliance", "consume", console.topic, "--follow", "-b", console.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    alarm = Timer(120, follower.kill)  # ends a readline that would wait for ever
    alarm.start()
    try:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline() == b"first\n"
        console.produce(b"second\n", "--partition", 3).succeeded()
        assert follower.stdout.readline() == b"second\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == 130
        assert follower.stderr.read().strip() == b""
    finally:
        alarm.cancel()
        follower.kill()
        follower.communicate()


def test_reader_that_goes_away_ends_consume_quietly(console: Console) -> None:
    console.produce(b"x" * 100 + b"\n" * 50_000, "--partition", 0).succeeded()
    done = subprocess.run(
        f"{sys.executable} -m appliance consume {console.topic} -b {console.bootstrap} | head -1",
        shell=True,
        capture_output=True,
        timeout=60,
        check=False,
        env=environment(),
    )
    assert done.stdout == b"x" * 100 + b"\n"
    assert done.stderr == b""


def test_what_was_typed_before_ctrl_c_is_sent(console: Console) -> None:
    typist = subprocess.Popen(
        [sys.executable, "-m", "appliance", "produce", console.topic, "-p", "0", "-b", console.bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        assert typist.stdin is not None
        typist.stdin.write(b"typed\n")
        typist.stdin.flush()
        deadline_s = time.monotonic() + 30
        while console.consume().code != 0 or not console.consume().output:
            assert time.monotonic() < deadline_s, "a typed line is sent while the keyboard rests"
        typist.send_signal(signal.SIGINT)
        assert typist.wait(30) == 130
    finally:
        typist.kill()
        typist.communicate()
    assert console.consume().output == b"typed\n"
