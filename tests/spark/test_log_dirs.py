"""The data directory of a broker whose log directories lie elsewhere (`log.dirs`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.config import load_settings
from appliance.log.known_directories import FILES
from spark_connector.directory import Directories
from spark_connector.errors import NotALogDirectory
from spark_connector.options import read_options
from spark_connector.views import count_records
from tests.cli.command import appliance
from tests.support.broker import Appliance

RECORDS = 200


def test_the_data_directory_leads_to_log_directories_elsewhere(tmp_path: Path) -> None:
    disks = tmp_path / "disk-a", tmp_path / "disk-b"
    broker = Appliance(tmp_path / "data", settings={"log.dirs": ",".join(map(str, disks))})
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result(20)
        producer = Producer({"bootstrap.servers": broker.address})
        for number in range(RECORDS):
            producer.produce("orders", str(number), partition=number % 4)
        assert producer.flush(20) == 0
    finally:
        broker.stop()
    data = tmp_path / "data"
    assert Directories([data]).log_directories == disks
    options = read_options({"path": str(data), "subscribe": "orders"}, streaming=False)
    assert count_records(options) == RECORDS
    told = appliance("export", "segments", "orders", "--to", tmp_path / "to", "--data-dir", data)
    assert told.code == 0, told.errors

    disks[1].rename(tmp_path / "unplugged")
    with pytest.raises(NotALogDirectory, match=r"disk-b is a log directory of .*is its disk mounted"):
        Directories([data])
    disks[1].mkdir()
    (disks[1] / "meta.properties").write_text("version=1\ndirectory.id=another\n")
    with pytest.raises(NotALogDirectory, match="is not the directory that was used there"):
        Directories([data])


def test_a_file_of_log_directories_that_does_not_parse_is_named(tmp_path: Path) -> None:
    (tmp_path / "slot-0.log-dirs.json").write_text("[")
    with pytest.raises(NotALogDirectory, match=r"slot-0\.log-dirs\.json is no JSON"):
        Directories([tmp_path])
    (tmp_path / "slot-0.log-dirs.json").write_text(json.dumps({}))
    with pytest.raises(NotALogDirectory, match="is no data directory"):
        Directories([tmp_path])


def test_the_files_are_found_by_the_names_that_slots_give_them(tmp_path: Path) -> None:
    settings = load_settings(None, {"log.dirs": "a-{slot}", "slots": "2"})
    known = settings.known_directories(1)
    assert known is not None
    assert known.match(FILES)
