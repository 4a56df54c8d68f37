"""What the connector reads off a real broker's disk is what consumers get from it. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_connector.errors import CorruptSegment, NotALogDirectory, UnknownTopic
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.kafka_python import KafkaPythonClient
from tests.spark.topics import (
    consumed,
    delete_below,
    end,
    gaps,
    read_files,
    wait_for_state,
    write_by_several_clients,
    write_more,
)
from tests.support.broker import Appliance

TOPIC = "orders"


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    """A broker of one slot with one topic."""
    started = Appliance(tmp_path / "data")
    started.start()
    try:
        write_by_several_clients(started.address, TOPIC)
        wait_for_state(started.data_dir, ConfluentClient(started.address), TOPIC)
        yield started
    finally:
        end(started)


def test_records_are_those_that_consumers_get_with_the_broker_running_stopped_and_killed(
    appliance: Appliance,
) -> None:
    client = ConfluentClient(appliance.address)
    expected = consumed(client, TOPIC)
    assert consumed(KafkaPythonClient(appliance.address), TOPIC) == expected
    assert read_files(appliance.data_dir, TOPIC) == expected
    delete_below(appliance.address, TOPIC, 77)
    wait_for_state(appliance.data_dir, client, TOPIC)
    expected = [each for each in expected if each.partition or each.offset >= 77]
    assert read_files(appliance.data_dir, TOPIC) == expected
    appliance.stop()
    assert read_files(appliance.data_dir, TOPIC) == expected
    appliance.start()
    write_more(appliance.address, TOPIC)
    client = ConfluentClient(appliance.address)
    wait_for_state(appliance.data_dir, client, TOPIC)
    expected = consumed(client, TOPIC)
    appliance.kill()
    assert read_files(appliance.data_dir, TOPIC) == expected


def test_a_log_that_is_written_meanwhile_is_read_without_a_gap(appliance: Appliance) -> None:
    begun = read_files(appliance.data_dir, TOPIC)
    writer = threading.Thread(target=write_more, args=(appliance.address, TOPIC), kwargs={"rounds": 3})
    writer.start()
    looks = [begun]
    while writer.is_alive():
        looks.append(read_files(appliance.data_dir, TOPIC, {"splitBytes": "4k"}))
    writer.join()
    client = ConfluentClient(appliance.address)
    wait_for_state(appliance.data_dir, client, TOPIC)
    whole = consumed(client, TOPIC)
    assert read_files(appliance.data_dir, TOPIC) == whole
    for look in looks:
        assert list(gaps(look)) == []
        assert set(look) <= set(whole)
        assert len(look) >= len(begun)


def test_a_corrupt_batch_is_told_with_its_place_or_passed_over_on_request(appliance: Appliance) -> None:
    expected = consumed(ConfluentClient(appliance.address), TOPIC)
    appliance.stop()
    path = min(appliance.data_dir.glob(f"**/{TOPIC}-1/*.log"))
    content = bytearray(path.read_bytes())
    first_bytes = int.from_bytes(content[8:12], "big") + 12
    content[first_bytes + 70] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(CorruptSegment) as raised:
        read_files(appliance.data_dir, TOPIC)
    assert (raised.value.path, raised.value.position) == (str(path), first_bytes)
    corrupt: list[tuple[str, int, str]] = []
    found = read_files(appliance.data_dir, TOPIC, corrupt=corrupt)
    assert [(each[0], each[1]) for each in corrupt] == [(str(path), first_bytes)]
    assert set(found) < set(expected)
    missing = sorted(each.offset for each in set(expected) - set(found))
    assert missing == list(range(missing[0], missing[-1] + 1))


def test_a_reader_that_can_write_no_lease_says_so_and_reads_all(
    appliance: Appliance, caplog: pytest.LogCaptureFixture
) -> None:
    for directory in appliance.data_dir.glob(f"**/{TOPIC}-*"):
        for each in (directory / ".readers").glob("*"):
            each.unlink()
        if (directory / ".readers").is_dir():
            (directory / ".readers").rmdir()
        (directory / ".readers").write_bytes(b"")  # where a directory is wanted: stops the superuser too
    assert read_files(appliance.data_dir, TOPIC) == consumed(ConfluentClient(appliance.address), TOPIC)
    assert "cannot write a lease" in caplog.text


def test_what_is_not_there_is_a_clear_error(appliance: Appliance, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic, match="parcels"):
        read_files(appliance.data_dir, "parcels")
    with pytest.raises(NotALogDirectory, match="none"):
        read_files(tmp_path / "none", TOPIC)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALogDirectory, match="empty"):
        read_files(tmp_path / "empty", TOPIC)
