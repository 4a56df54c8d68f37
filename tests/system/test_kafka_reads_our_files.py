"""Apache Kafka's own code over our files: its dump tool, its log loading, and its broker find nothing wrong.

The logs are made by real clients in every codec, by idempotent producers, through rolls, restarts and kills.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.log.partition_metadata import read_topic_id, write_topic_id
from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.record import decode_records
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from spark_connector.planning import OffsetRange, plan
from spark_connector.scan import scan
from tests.clients.adapters.aiokafka import AiokafkaClient
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.kafka_python import KafkaPythonClient
from tests.clients.adapters.kcat import KcatClient
from tests.clients.client import CODECS, Client, Record
from tests.log.file_history import FileHistory
from tests.log.scripted_run import ScriptedRun, opened
from tests.support.apache_kafka import ApacheKafka, compiled, java
from tests.support.broker import Appliance
from tests.system.raw import wait_until

SOURCE: Final = Path(__file__).with_name("java") / "OpenLog.java"
CLIENTS: Final[tuple[type[Client], ...]] = (ConfluentClient, KafkaPythonClient, AiokafkaClient, KcatClient)
COMPLAINTS: Final = re.compile(
    r"mismatch|non-consecutive|out of order|exception|error|invalid|corrupt|isvalid: false", re.IGNORECASE
)
# The tool begins each file at offset -1, so it says this of the first record of every later segment, of Kafka's too.
FIRST_OF_A_SEGMENT: Final = re.compile(
    r"Non-consecutive offsets in \S*/0*(\d+)\.log\n  -1 is followed by \1\n"
)
START_MS: Final = int(time.time() * 1000) - 3_600_000  # old producers would be forgotten, by Kafka too


def opened_by_kafka(how: str, directories: list[Path]) -> dict[str, list[str]]:
    """What Kafka's UnifiedLog finds in partition directories, which it may change: lines by directory name."""
    command = [*java("-Xmx512m", "-XX:TieredStopAtLevel=1", classes=compiled(SOURCE)), "OpenLog", how]
    done = subprocess.run(
        [*command, *map(str, directories)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if words[0] == "log":
            lines = found.setdefault(Path(words[1]).name, [])
            lines.append(" ".join(words[2:]))
        else:
            lines.append(line)
    return found


def dump(*arguments: str) -> str:
    """Everything that DumpLogSegments says; it complains on standard error."""
    command = [*java("-Xmx256m", "-XX:TieredStopAtLevel=1"), "org.apache.kafka.tools.DumpLogSegments"]
    done = subprocess.run(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def dump_complaints(directories: list[Path]) -> list[str]:
    """What Kafka's dump tool says against the files of partition directories; three JVMs for all of them."""
    names = {
        suffix: [str(path) for each in directories for path in sorted(each.glob(f"*{suffix}"))]
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    }
    indexes = [*names[".index"], *names[".timeindex"]]
    logs = [name for name in names[".log"] if Path(name).stat().st_size]
    told = dump("--deep-iteration", "--files", ",".join(logs + names[".txnindex"] + names[".snapshot"]))
    told += dump("--verify-index-only", "--files", ",".join(indexes))
    sane = dump("--index-sanity-check", "--files", ",".join(indexes))
    assert sane.count("passed sanity check") + sane.count("is empty") == len(indexes)
    assert told.count("Dumping") == len(logs) + len(names[".txnindex"]) + len(names[".snapshot"]) + len(
        indexes
    )
    told = FIRST_OF_A_SEGMENT.sub("", told)
    return [line for line in told.splitlines() if COMPLAINTS.search(line) and "isvalid: true" not in line]


def produce_in_every_way(address: str, life: int) -> None:
    """Every client in every codec, and an idempotent producer that fills a segment and more."""
    for kind in CLIENTS:
        client = kind(address)
        try:
            for codec in CODECS:
                records = [
                    Record(
                        key=b"%d" % number,
                        value=f"{kind.name} {codec} {life} {number} ".encode() * 20,
                        timestamp_ms=START_MS + life * 1000 + number if client.sets_timestamps else None,
                    )
                    for number in range(60)
                ]
                client.produce(f"codec-{codec}", records, codec=codec)
        finally:
            client.close()
    idempotent = Producer({"bootstrap.servers": address, "enable.idempotence": True, "batch.size": 20_000})
    for number in range(1500):
        # Timestamps that fall as well as rise: the time index keeps the largest only.
        stamp = START_MS + (number * 7919) % 100_000
        idempotent.produce("rolled", b"%d" % number + bytes(900), timestamp=stamp)
        idempotent.poll(0)
    assert idempotent.flush(60) == 0


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Our log directory after a clean stop and after a kill of every process, with the same history before."""
    root = tmp_path_factory.mktemp("ours")
    appliance = Appliance(root / "data", settings={"log.message.timestamp.before.max.ms": 1 << 62})
    slot = root / "data" / "slot-0"
    appliance.start()
    try:
        admin = AdminClient({"bootstrap.servers": appliance.address})
        wanted = [NewTopic(f"codec-{codec}", 1, 1) for codec in CODECS]
        wanted.append(NewTopic("rolled", 1, 1, config={"segment.bytes": "1048576"}))
        wanted.append(NewTopic("empty", 1, 1))
        for future in admin.create_topics(wanted).values():
            future.result(30)
        produce_in_every_way(appliance.address, 0)
        appliance.stop()
        appliance.start()
        produce_in_every_way(appliance.address, 1)
        appliance.kill_role("ioproc")
        produce_in_every_way(appliance.address, 2)
        appliance.kill()
        shutil.copytree(slot, root / "killed")
        appliance.start()
        produce_in_every_way(appliance.address, 3)
    finally:
        appliance.stop()
    return {"clean": slot, "killed": root / "killed"}


def partitions_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir())


def scripted(root: Path) -> Path:
    """A partition with aborted transactions, truncation, two lives and every size of batch, cleanly closed."""
    with FileHistory(root) as history:
        ScriptedRun(root, history).play()
    directory, _ = opened(root)
    directory.close()
    return root / "scripted-0"


def test_the_dump_tool_finds_nothing_wrong(left: dict[str, Path], tmp_path: Path) -> None:
    directories = [*partitions_of(left["clean"]), scripted(tmp_path / "scripted")]
    assert sum(len(list(each.glob("*.log"))) for each in directories) > 8, "there were rolls"
    assert any(list(each.glob("*.txnindex")) for each in directories)
    assert dump_complaints(directories) == []


def test_the_dump_tool_would_tell(left: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "rolled-0"
    shutil.copytree(left["clean"] / "rolled-0", directory)
    index = sorted(directory.glob("*.index"))[0]
    content = bytearray(index.read_bytes())
    content[3] ^= 1
    index.write_bytes(content)
    assert dump_complaints([directory])


def expected(directory: Path, how: str) -> list[str]:
    """What OpenLog should print of a partition directory, by our own reading of it."""
    from appliance.clock import SystemClock
    from appliance.log.config import LogSettings
    from appliance.log.partition_log import PartitionLog
    from tests.log.batches import read_all

    log = PartitionLog.open(
        directory, settings=LogSettings(), clock=SystemClock(), clean=how == "clean", recovery_point=0
    )
    lines = [f"{log.log_start_offset} {log.log_end_offset}"]
    for record in read_all(log):
        crcs = [-1 if each is None else checksum(each) for each in (record.key, record.value)]
        lines.append(f"record {record.offset} {record.timestamp_ms} {crcs[0]} {crcs[1]}")
    log.close(clean=False)
    return lines


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_kafkas_log_reads_the_same_records(left: dict[str, Path], tmp_path: Path, how: str) -> None:
    shutil.copytree(left[how], tmp_path / "kafkas")
    shutil.copytree(left[how], tmp_path / "ours")
    found = opened_by_kafka(how, partitions_of(tmp_path / "kafkas"))
    assert found.keys() == {path.name for path in partitions_of(left[how])}
    for directory in partitions_of(tmp_path / "ours"):
        lines = [line for line in found[directory.name] if not line.startswith(("producer", "aborted"))]
        assert lines == expected(directory, how), directory.name
    assert any(line.startswith("producer") for line in found["rolled-0"])
    assert found["empty-0"] == ["0 0"]
    assert not list((left[how] / "empty-0").glob("*.log")), "Kafka is shown a directory without segments"


def test_kafkas_broker_serves_our_directory(left: dict[str, Path], tmp_path: Path) -> None:
    """KRaft gives the topics ids of its own, so ours are written over in the copy; nothing else is changed."""
    kafka = ApacheKafka(tmp_path / "kafka")
    log = kafka.data_dir / "log"
    ours = partitions_of(left["clean"])
    kafka.start()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        topics = [NewTopic(path.name.rpartition("-")[0], 1, 1) for path in ours]
        for future in admin.create_topics(topics).values():
            future.result(30)
        wait_until(lambda: all((log / path.name).is_dir() for path in ours), "Kafka made them", timeout_s=30)
        kafka.stop()
        for path in ours:
            topic_id = read_topic_id(log / path.name)
            assert topic_id is not None
            shutil.rmtree(log / path.name)
            shutil.copytree(path, log / path.name)
            write_topic_id(log / path.name, topic_id)
            # What readers off the disk leave there is nothing to Kafka.
            assert (log / path.name / ".state").exists()
            (log / path.name / ".readers").mkdir()
            (log / path.name / ".readers" / "somebody.lease").write_text("{}")
        kafka.start()
        for path in ours:
            copy = tmp_path / path.name
            shutil.copytree(path, copy)
            lines = expected(copy, "clean")
            client = ConfluentClient(kafka.address)
            count = len(lines) - 1
            received = client.consume(path.name.rpartition("-")[0], 0, start=0, count=count)
            client.close()
            assert [
                f"record {each.offset} {each.timestamp_ms} "
                + " ".join(str(-1 if part is None else checksum(part)) for part in (each.key, each.value))
                for each in received
            ] == lines[1:]
        for topic in ("rolled", "empty"):
            ConfluentClient(kafka.address).produce(topic, [Record(key=None, value=b"written by Kafka")])
        kafka.stop()
        assert values_off_the_disk(log, "rolled")[-1] == b"written by Kafka"
        assert values_off_the_disk(log, "empty") == [b"written by Kafka"]
    finally:
        kafka.stop()


def values_off_the_disk(directory: Path, topic: str) -> list[bytes | None]:
    """Of a topic with one partition, read as Spark does, up to what Kafka's checkpoint says."""
    view = Directories([directory]).partition(topic, 0)
    wanted = OffsetRange(topic, 0, view.log_start_offset, end_offset(view, Isolation.READ_COMMITTED))
    found = []
    for chunk in (chunk for task in plan([view], [wanted]) for chunk in scan(task)):
        for batch in chunk.batches:
            at, length_bytes = int(batch["position"]), int(batch["length_bytes"])
            records = decode_records(chunk.data.data[at : at + length_bytes])
            found += [record.value for record in records]
    return found
